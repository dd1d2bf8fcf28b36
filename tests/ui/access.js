// Who is shown what: a cluster that knows its readers, with tasks of two users.

import assert from "node:assert/strict";

import { problems, rowsOf, signedInAs, watch } from "./browser.js";
import { ShutCluster, eventually } from "./cluster.js";

const secretOf = (principal) => ({ username: principal, password: principal });

/** Without a secret nothing is shown but files that are the same everywhere. */
export async function nobody() {
  const shut = await ShutCluster.start();
  try {
    const without = await fetch(`http://${shut.master}/tasks`);
    assert.equal(without.status, 401);
    assert.match(without.headers.get("www-authenticate"), /^Basic /, "the browser asks for the secret");
    assert.equal((await fetch(`http://${shut.master}/`)).status, 200);
    // Without any secret the browser asks the reader for one, and the page waits.
    await signedInAs({ username: "reader", password: "guessed" }, async (page) => {
      await page.goto(`http://${shut.master}/#/tasks`);
      await page.getByText("Not signed in").waitFor();
    });
  } finally {
    await shut.end();
  }
}

/** A reader of one role and one user, somebody who may set one weight, and an operator who may do everything. */
export async function eachItsOwn() {
  const shut = await ShutCluster.start();
  try {
    await shut.fill();
    await signedInAs(secretOf("reader"), (page) => reader(page, shut));
    await signedInAs(secretOf("lead"), (page) => lead(page, shut));
    await signedInAs(secretOf("operator"), (page) => operator(page, shut));
  } finally {
    await shut.end();
  }
}

async function reader(page, shut) {
  watch(page);
  const show = async (part, title) => {
    await page.goto(`http://${shut.master}/#/${part}`);
    await page.getByRole("heading", { level: 1, name: title, exact: true }).waitFor();
  };
  await show("tasks", "Tasks");
  assert.deepEqual((await rowsOf(page, "Tasks")).map((row) => row[0]), ["mine"]);
  await show("frameworks", "Frameworks");
  const frameworks = await rowsOf(page, "Frameworks");
  assert.equal(frameworks.length, 1);
  await page.getByRole("link", { name: frameworks[0][0], exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "Framework", exact: true }).waitFor();
  assert.equal(await page.getByText("End this framework").count(), 0);
  await show("roles", "Roles");
  assert.deepEqual((await rowsOf(page, "Roles")).map((row) => row[0]), ["eng"]);
  await show("agents", "Agents");
  await page.getByRole("table", { name: "Agents" }).getByRole("link").first().click();
  await page.getByText("Its tasks among the newest").waitFor();
  assert.equal(await page.getByText("Drain or reserve").count(), 0);
  assert.equal(await page.getByRole("link", { name: "Operate" }).count(), 0);
  await show("", "Now");
  await page.getByText("need the permission get_endpoints").waitFor();
  await page.getByText("None of the last 200 tasks failed.").waitFor();
  await show("operate", "Operate");
  await page.getByText("reader has no permission to change anything here.").waitFor();
  assert.equal(await page.locator("form").count(), 0);
  assert.deepEqual(problems, [], "nothing was asked for that is refused");
}

/** One weight: one form, for one role; what it offers is done. */
async function lead(page, shut) {
  watch(page);
  await page.goto(`http://${shut.master}/#/operate`);
  const form = page.locator("form");
  await form.first().waitFor();
  assert.deepEqual(await form.evaluateAll((all) => all.map((one) => one.id)), ["form-weight"]);
  assert.deepEqual(await form.locator("select option").allTextContents(), ["eng"]);
  await form.getByLabel("Weight").fill("4");
  await form.getByRole("button", { name: "Set a weight" }).click();
  await form.getByText("Done: eng has weight 4.").waitFor();
  assert.deepEqual(problems, []);
}

async function operator(page, shut) {
  await page.goto(`http://${shut.master}/#/operate`);
  await page.locator("#form-teardown").waitFor();
  assert.equal(await page.locator("form").count(), 12, "each form");
  await page.goto(`http://${shut.master}/#/tasks`);
  await page.getByRole("table", { name: "Tasks" }).waitFor();
  assert.deepEqual((await rowsOf(page, "Tasks")).map((row) => row[0]).sort(), ["mine", "theirs"]);
  // A reservation has the principal of who made it, and is taken back with it.
  await page.goto(`http://${shut.master}/#/operate`);
  const [{ id }] = (await shut.get("slaves")).slaves;
  const send = async (form, values, said) => {
    const found = page.locator(`#form-${form}`);
    await found.getByLabel("Agent's id", { exact: true }).fill(id);
    for (const [label, value] of Object.entries(values)) await found.getByLabel(label, { exact: true }).fill(value);
    await found.locator("button[type=submit]").click();
    await found.getByText(said).waitFor();
  };
  await send("reserve", { Role: "data", Resources: "cpus:0.5" }, "Done: data has cpus 0.5 on this agent.");
  await send("unreserve", { Role: "data", Resources: "cpus:0.5" }, "Done: data has – on this agent.");
  // A drained agent that is to be gone has no state of a drain any more. One without tasks: those that were left running have
  // nobody who acknowledges their ends.
  shut.children.push(shut.agent("empty", ["--resources=cpus:1;mem:64;disk:64"]));
  const isOther = (agent) => agent.id !== id;
  const empty = await eventually("the other agent", async () => (await shut.get("slaves")).slaves.find(isOther));
  const drain = page.locator("#form-drain");
  await drain.getByLabel("Agent's id", { exact: true }).fill(empty.id);
  await drain.locator("select[name=gone]").selectOption("yes");
  await drain.locator("button[type=submit]").click();
  await page.getByRole("dialog").getByRole("button", { name: "Drain" }).click();
  await drain.getByText("Done: the agent is gone for good.").waitFor({ timeout: 60_000 });
}
