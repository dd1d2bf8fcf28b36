// What the page does when masters and connections fail. Each takes a context of the browser and a cluster.

import assert from "node:assert/strict";
import net from "node:net";

import { breaking, rowsOf, signedInAs, watch } from "./browser.js";
import { eventually } from "./cluster.js";

/** The leader is killed: the page says that it is gone, and then shows what the next one knows, on the same part. */
export async function nextLeader(context, several) {
  const page = await context.newPage();
  try {
    const { leader } = await several.get("leader");
    await page.goto(`http://${leader}/#/agents`);
    await page.getByRole("table", { name: "Agents" }).waitFor();
    several.kill(leader.split(":")[1]);
    await page.getByText(/Disconnected|Going to the leader/).waitFor();
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
      await page.getByText(/Disconnected: .*Other addresses:/).waitFor();
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

  /** The connections that are open stay so, and nothing passes any more; new ones are passed on. */
  hold() {
    for (const socket of this.sockets) socket.unpipe().pause();
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

/** A stream that stays open and says nothing, not even its heartbeats, is opened again, and the break is shown. */
export async function silentStream(cluster) {
  const proxy = new Proxy(cluster.master);
  await proxy.open();
  try {
    // In a browser of its own: a clock that is set is that of all its pages.
    await signedInAs(undefined, async (page) => {
      await page.clock.install();
      await page.goto(`http://127.0.0.1:${proxy.port}/#/events`);
      const status = page.locator(".bar-of-tools");
      await status.getByText("connected", { exact: true }).waitFor();
      // Until a heartbeat has come.
      await page.waitForTimeout(17_000);
      proxy.hold();
      const resumed = page.getByRole("table", { name: "Events", exact: true }).getByText("resumed");
      await eventually("the break", async () => {
        // The next attempt may go over another connection that is held: each is given up in its turn.
        await page.clock.fastForward(46_000);
        return resumed.first().waitFor({ timeout: 2000 }).then(() => true);
      }, 60);
      await status.getByText("connected", { exact: true }).waitFor();
    });
  } finally {
    await proxy.cut();
  }
}

/** A page of a master that is answered by `answers`, by the paths; what they have nothing for is asked of the master. */
async function answeredBy(context, cluster, answers, body) {
  const page = await context.newPage();
  const asked = [];
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(error.stack));
  await page.route("**/*", async (route) => {
    const request = route.request();
    const to = new URL(request.url());
    asked.push({ method: request.method(), path: to.pathname, query: to.search });
    const answer = answers[to.pathname]?.(to, request);
    if (answer === undefined) return route.continue();
    if (answer !== null) return route.fulfill(answer);
  });
  const open = async (fragment, title) => {
    await page.goto(`http://${cluster.master}/#/${fragment}`);
    await page.getByRole("heading", { level: 1, name: title, exact: true }).waitFor();
  };
  try {
    await body({ page, open, asked });
    assert.deepEqual(wrong, [], "errors that nobody has caught");
  } finally {
    await page.close();
  }
}

/** Whatever a daemon answers, what cannot be shown is one part of the page, and the rest goes on. */
export async function oddAnswers(context, cluster) {
  const { tasks } = await cluster.get("tasks?limit=1");
  const status = (timestamp) => [{ state: "TASK_FAILED", timestamp }];
  const odd = [1e300, -1e300, null].map((timestamp, at) => ({ ...tasks[0], id: `odd-${at}`, state: "TASK_FAILED", statuses: status(timestamp) }));
  const answers = { "/tasks": () => ({ json: { tasks: odd } }) };
  await answeredBy(context, cluster, answers, async ({ page, open }) => {
    await open("", "Now");
    await eventually("tasks that failed at no time", async () => (await rowsOf(page, "Failing tasks")).length === odd.length);
    await open("tasks", "Tasks");
    assert.equal((await rowsOf(page, "Tasks"))[0][5], "–");
    const { frameworks: [framework] } = await cluster.get("state-summary");
    const whole = await cluster.get(`frameworks?framework_id=${framework.id}&tasks=false`);
    const { roles, ...single } = whole.frameworks[0];
    // As one without the capability MULTI_ROLE is shown.
    answers["/frameworks"] = () => ({ json: { ...whole, frameworks: [{ ...single, role: roles[0] }] } });
    await open(`frameworks/${framework.id}`, "Framework");
    await page.getByText("Failover timeout").waitFor();
    const { offers, ...broken } = whole.frameworks[0];
    assert.ok(offers);
    answers["/frameworks"] = () => ({ json: { ...whole, frameworks: [broken] } });
    await open("frameworks/broken", "Framework");
    await page.getByText("This part cannot be shown").waitFor();
    await page.getByText("Connected to").waitFor();
    delete answers["/frameworks"];
    await page.getByRole("link", { name: "Agents", exact: true }).click();
    await page.getByRole("table", { name: "Agents" }).waitFor();
  });
}

/** "Older" leads to older tasks, also where as many are left as a page shows. */
export async function lastTasks(context, cluster) {
  const { tasks: [task] } = await cluster.get("tasks?limit=1");
  const TOTAL = 400;
  const answers = {
    "/tasks": ({ searchParams }) => {
      const [from, limit] = [Number(searchParams.get("offset")), Number(searchParams.get("limit"))];
      const length = Math.max(0, Math.min(limit, TOTAL - from));
      return { json: { tasks: Array.from({ length }, (_, at) => ({ ...task, id: `t-${from + at}` })) } };
    },
  };
  await answeredBy(context, cluster, answers, async ({ page, open }) => {
    const older = page.getByRole("link", { name: "Older", exact: true });
    await open("tasks?offset=-5", "Tasks");
    await page.getByText("1 to 200, newest first").waitFor();
    await older.click();
    await page.getByText("201 to 400, newest first").waitFor();
    assert.equal(await older.count(), 0);
    await open("tasks?offset=400", "Tasks");
    await page.getByText("No older tasks.").waitFor();
  });
}

/** Of an agent that is unreachable the master may have kept the host alone, and nothing leads to a page of it. */
export async function lostAgents(context, cluster) {
  const lost = { unreachable_slaves: [{ id: "lost-S1", hostname: "node1", unreachable_time: 1_800_000_000 }], gone_slaves: [{ id: "gone-S2", gone_time: 1_800_000_000 }] };
  const awaited = { id: "awaited-S3", hostname: "node3", port: 5051, attributes: {} };
  const answers = { "/slaves": () => ({ json: { slaves: [], recovered_slaves: [awaited], ...lost, total: 403 } }) };
  await answeredBy(context, cluster, answers, async ({ page, open, asked }) => {
    await open("logs/lost-S1/framework/executor/stderr", "Logs");
    await page.getByText("is not registered, so its files").waitFor();
    await open("tasks", "Tasks");
    await page.getByRole("table", { name: "Tasks" }).waitFor();
    await open("agents/lost-S1", "Agent");
    await page.getByText("Unreachable since").waitFor();
    assert.equal(await page.getByText("Containers and their use").count(), 0);
    await open("agents", "Agents");
    assert.deepEqual((await rowsOf(page, "Agents")).map((row) => row[0]).sort(), ["gone-S2", "node1", "node3:5051"]);
    // Those that are awaited after a failover are counted among none that are registered.
    await open("", "Now");
    await eventually("the awaited one", async () => (await rowsOf(page, "Agents that take no tasks")).some((row) => row[0] === "node3:5051" && row[1] === "recovered"));
    await page.getByText("200 of 403 are shown.").waitFor();
    assert.ok(asked.some(({ path, query }) => path === "/slaves" && query.includes("recovered")));
  });
}

/** What is refused or not answered is asked for no more often than it was, and what is shown of before is said to be that. */
export async function lateAnswers(context, cluster) {
  const answers = {};
  await answeredBy(context, cluster, answers, async ({ page, open, asked }) => {
    await open("", "Now");
    await page.getByRole("table", { name: "Failing tasks" }).waitFor();
    await page.getByText("Connected to").waitFor();
    answers["/tasks"] = () => ({ status: 500, body: "out of order" });
    const late = page.getByText(/Some of the shown data is from .*: out of order/);
    await late.waitFor();
    // The answers to other questions do not say that this one is fresh.
    const others = () => asked.filter(({ path }) => path === "/leader").length;
    const before = others();
    await eventually("answers to others", () => others() > before + 1);
    assert.ok(await late.isVisible());
    assert.ok(await page.getByRole("table", { name: "Failing tasks" }).isVisible(), "what was shown stays");
    answers["/tasks"] = () => ({ status: 503, body: "too many wait" });
    await page.getByText(/Some of the shown data is from .*: too many wait/).waitFor();
    const from = asked.length;
    await page.waitForTimeout(10_000);
    const times = asked.slice(from).filter(({ path }) => path === "/tasks").length;
    assert.ok(times <= 3, `asked ${times} times in 10 s`);
    answers["/tasks"] = () => null;
    await page.getByText(/Some of the shown data is from .*: no answer/).waitFor({ timeout: 60_000 });
    assert.equal(await page.getByText("Disconnected").count(), 0, "others are answered");
    await open("agents", "Agents");
    await page.getByText("Connected to").waitFor();
  });
}

/** A change that was taken is not said to have failed because a look at it failed, and one without an answer ends. */
export async function outcomes(context, cluster) {
  let looks = 0;
  let change = () => ({ status: 202 });
  const agent = (cpus) => ({ json: { slaves: [{ id: "A", hostname: "node", port: 5051, active: true, reserved_resources: cpus ? { ads: { cpus } } : {} }], total: 1 } });
  const answers = {
    "/slaves": (to) => {
      if (!to.searchParams.has("slave_id")) return undefined;
      looks += 1;
      return looks === 2 ? { status: 503, body: "not at the moment" } : agent(looks > 4 ? 1 : 0);
    },
    "/api/v1": () => change(),
  };
  await answeredBy(context, cluster, answers, async ({ page, open, asked }) => {
    await open("operate", "Operate");
    const form = page.locator("#form-reserve");
    for (const [label, value] of [["Agent's id", "A"], ["Role", "ads"], ["Resources", "cpus:1"]]) {
      await form.getByLabel(label, { exact: true }).fill(value);
    }
    const button = form.locator("button[type=submit]");
    await button.click();
    await form.getByText("Done: ads has cpus 1 on this agent.").waitFor();
    assert.equal(asked.filter(({ path }) => path === "/api/v1").length, 1);
    change = () => null;
    await button.click();
    await form.getByText("no answer: the change may have been applied").waitFor({ timeout: 60_000 });
    assert.ok(await button.isEnabled());
  });
}
