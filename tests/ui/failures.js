// What the page does when masters and connections fail. Each takes a context of the browser and a cluster.

import assert from "node:assert/strict";
import net from "node:net";

import { breaking, rowsOf, watch } from "./browser.js";
import { eventually } from "./cluster.js";

/** The leader is killed: the page says that it is gone, and then shows what the next one knows, on the same part. */
export async function nextLeader(context, several) {
  const page = await context.newPage();
  try {
    const { leader } = await several.get("leader");
    await page.goto(`http://${leader}/#/agents`);
    await page.getByRole("table", { name: "Agents" }).waitFor();
    several.kill(leader.split(":")[1]);
    await page.getByText(/Disconnected|Going to the one that leads/).waitFor();
    // The one that was killed is started again, and may be elected again.
    await eventually("the page of the next leader", async () => {
      const { leader: next } = await several.leads();
      const isConnected = await page.getByText(/Connected to/).isVisible();
      return isConnected && new URL(page.url()).host === next;
    }, 60);
    await page.getByRole("table", { name: "Agents" }).waitFor({ timeout: 60_000 });
    assert.equal(new URL(page.url()).hash, "#/agents");
  } finally {
    await page.close();
  }
}

/** A leader is killed and does not come back: its page names the others, and one click leads to the next leader's. */
export async function goneForGood(context, several) {
  const page = await context.newPage();
  try {
    const masters = await eventually("all masters", async () => {
      const { masters } = await several.leads();
      return masters.length === 3 && masters;
    }, 60);
    const { leader } = await several.leads();
    await page.goto(`http://${leader}/`);
    await eventually("the masters", async () => (await rowsOf(page, "Masters")).length === 3, 60);
    const shown = await rowsOf(page, "Masters");
    assert.deepEqual(shown.map(([master]) => master), masters);
    assert.deepEqual(shown.filter(([, role]) => role === "leading"), [[leader, "leading"]]);
    // What starts it again is stopped first.
    several.process.kill("SIGSTOP");
    try {
      several.kill(leader.split(":")[1]);
      await page.getByText(/Disconnected: .*The others:/).waitFor();
      const others = page.locator(".connection a");
      assert.deepEqual(await others.allTextContents(), masters.filter((one) => one !== leader));
      // At once: until the lease is over, that one names the one that is gone.
      await others.first().click();
      await page.getByRole("table", { name: "Masters" }).waitFor({ timeout: 60_000 });
      await page.getByText(/Connected to/).waitFor();
      assert.notEqual(new URL(page.url()).host, leader);
    } finally {
      several.process.kill("SIGCONT");
    }
  } finally {
    await page.close();
  }
}

/** Passes connections on to a master, until it is told to break them all. */
class Proxy {
  constructor(to) {
    const [host, port] = to.split(":");
    this.sockets = new Set();
    this.server = net.createServer((from) => {
      const onward = net.connect(Number(port), host);
      for (const [socket, other] of [[from, onward], [onward, from]]) {
        this.sockets.add(socket);
        socket.on("error", () => other.destroy());
        socket.on("close", () => {
          this.sockets.delete(socket);
          other.destroy();
        });
      }
      from.pipe(onward).pipe(from);
    });
  }

  async open(port = 0) {
    await new Promise((resolve) => this.server.listen(port, "127.0.0.1", resolve));
    this.port = this.server.address().port;
  }

  async cut() {
    const closed = new Promise((resolve) => this.server.close(resolve));
    for (const socket of this.sockets) socket.destroy();
    await closed;
  }
}

/** The stream of events breaks: the page says so, opens it again by itself, and shows how long the break was. */
export async function brokenStream(context, cluster) {
  const page = await context.newPage();
  const proxy = new Proxy(cluster.master);
  await proxy.open();
  try {
    watch(page);
    await page.goto(`http://127.0.0.1:${proxy.port}/#/events`);
    const status = page.locator(".bar-of-tools");
    await status.getByText("connected", { exact: true }).waitFor();
    await page.evaluate(() => (globalThis.wasLoaded = true));
    await breaking(async () => {
      await proxy.cut();
      await status.getByText("disconnected", { exact: true }).waitFor();
      await proxy.open(proxy.port);
      await status.getByText("connected", { exact: true }).waitFor();
    });
    const rows = () => rowsOf(page, "Events");
    await eventually("the break", async () => (await rows()).some((row) => row[1] === "resumed" && /no events were received for/.test(row[4])));
    cluster.task("after", "ads", "cpus:0.1;mem:32", "true");
    await eventually("what came after it", async () => (await rows()).some((row) => row[2].startsWith("after")));
    assert.equal(await page.evaluate(() => globalThis.wasLoaded), true, "it was not loaded again");
  } finally {
    await page.close();
    await proxy.cut();
  }
}
