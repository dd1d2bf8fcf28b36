// Who is shown what: a cluster that knows its readers, with tasks of two users.

import assert from "node:assert/strict";

import { problems, rowsOf, signedInAs, watch } from "./browser.js";
import { ShutCluster } from "./cluster.js";

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
  await page.getByText("they need the permission get_endpoints").waitFor();
  await page.getByText("None of the last 200 tasks failed.").waitFor();
  await show("operate", "Operate");
  await page.getByText("reader may change nothing here.").waitFor();
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
}
