// The page of the scheduler: its jobs equal the API's, a failure is two clicks from its log, and changes are made and asked.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { rowsOf } from "./browser.js";
import { LAST_LINE, eventually } from "./cluster.js";

const MARKUP = "<img src=x onerror=alert(2)>";
const small = { cpus: 0.1, mem: "32MB" };

/** A service that is well, one that fails with a message on its stderr, and one that fits nowhere. */
export async function fillJobs(cluster) {
  await cluster.submit({ name: "shop", count: 2, role: "ads", task: { command: "exec sleep 100000" }, resources: small });
  await cluster.submit({
    name: "broken", role: "ads", labels: { note: MARKUP }, resources: small,
    task: { command: `echo '${LAST_LINE}' >&2; exit 3` },
  });
  await cluster.submit({ name: "huge", role: "ads", task: { command: "true" }, resources: { cpus: 1000, mem: "32MB" } });
  await eventually("the jobs", async () => {
    const { jobs } = await cluster.jobs("jobs");
    const of = (name) => jobs.find((job) => job.name === name);
    return of("shop").state === "healthy" && of("broken").failed > 0 && of("huge").why !== "";
  });
}

async function openJobs(page, cluster) {
  await page.goto(`http://${cluster.scheduler}/#/`);
  await page.getByRole("table", { name: "Jobs" }).waitFor();
}

/** By the link in the master's list of frameworks. */
export async function jobsEqualTheApi(page, cluster) {
  await page.goto(`http://${cluster.master}/#/frameworks`);
  await page.getByRole("link", { name: cluster.scheduler, exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "Jobs", exact: true }).waitFor();
  assert.equal(new URL(page.url()).host, cluster.scheduler);
  await page.getByRole("table", { name: "Jobs" }).waitFor();
  const shown = await rowsOf(page, "Jobs");
  const { jobs } = await cluster.jobs("jobs");
  assert.equal(shown.length, jobs.length);
  assert.deepEqual(shown.map((row) => row[0]), ["broken", "huge", "shop"], "what fails first, then what waits");
  for (const job of jobs) {
    const row = shown.find((cells) => cells[0] === job.name);
    assert.deepEqual(row.slice(2, 6), [job.kind, job.role, String(job.count), String(job.running)]);
    assert.equal(row[6], String(job.healthy));
  }
  const { why } = jobs.find((job) => job.name === "huge");
  assert.equal(shown.find((row) => row[0] === "huge").at(-1), why);
  await page.getByLabel("Filter").fill("service ads shop");
  await eventually("the filtered", async () => (await rowsOf(page, "Jobs")).length === 1);
}

/** Two clicks: the job, and the stderr of what failed last. */
export async function fromJobToLog(page, cluster) {
  await openJobs(page, cluster);
  await page.getByRole("link", { name: "broken", exact: true }).click();
  const failures = page.getByRole("table", { name: "Last failures" });
  await failures.waitFor();
  assert.ok((await rowsOf(page, "Last failures"))[0].at(-1).includes("exited with status 3"));
  assert.equal(await page.locator("main img").count(), 0);
  await failures.getByRole("link", { name: /^stderr of/ }).first().click();
  const log = page.locator("pre.log");
  await eventually("the log", async () => (await log.textContent()).trimEnd().endsWith(LAST_LINE));
}

export async function oneJob(page, cluster) {
  await page.goto(`http://${cluster.scheduler}/#/job/shop`);
  await page.getByRole("table", { name: "Instances" }).waitFor();
  const { tasks } = await cluster.jobs("jobs/shop");
  const shown = await rowsOf(page, "Instances");
  assert.deepEqual(shown.map((row) => row[0]), tasks.map((task) => task.task_id));
  assert.ok(shown.every((row) => row[1].startsWith("running")), JSON.stringify(shown));
  const { versions } = await cluster.jobs("jobs/shop/history");
  assert.deepEqual((await rowsOf(page, "Versions")).map((row) => row[0]), versions.map((one) => String(one.version)).reverse());
}

/** Agent by agent, in numbers. */
export async function whyItWaits(page, cluster) {
  await eventually("an offer", async () => (await cluster.jobs("jobs/huge")).obstacles?.[0].includes("short of cpus"));
  await page.goto(`http://${cluster.scheduler}/#/job/huge`);
  // What is left of agents changes with each offer.
  await eventually("the obstacles", async () => {
    const { obstacles } = await cluster.jobs("jobs/huge");
    return (await page.locator(".why").textContent()) === obstacles.join("");
  });
}

/** Answers with each job of the file of reasons in turn: its page names the failure in one line. */
export async function everyReason(page, cluster) {
  const file = new URL("../../jobs/testdata/reasons.jsonl", import.meta.url);
  const cases = readFileSync(file, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  assert.ok(cases.length >= 60, `${cases.length}`);
  const at = "/v1/jobs/reason";
  const isJob = (url) => url.pathname === at;
  const isHistory = (url) => url.pathname === `${at}/history`;
  let shown;
  await page.route(isJob, (route) => route.fulfill({ json: { ...shown, name: "reason", tasks: [], tasks_total: 0, actions: [] } }));
  await page.route(isHistory, (route) => route.fulfill({ json: { versions: [], events: [] } }));
  try {
    for (const { text, job } of cases) {
      shown = job;
      await page.goto(`http://${cluster.scheduler}/#/`);
      await page.goto(`http://${cluster.scheduler}/#/job/reason`);
      const isNamed = (line) => line.includes(text.trim());
      await eventually(text, async () => (await page.locator("main").innerText()).split("\n").some(isNamed));
    }
  } finally {
    await page.unroute(isJob);
    await page.unroute(isHistory);
  }
}

async function change(page, id, verb, said) {
  const form = page.locator(`#form-${id}`);
  await form.locator("button[type=submit]").click();
  await page.getByRole("dialog").getByRole("button", { name: verb }).click();
  await form.getByText(said).waitFor({ timeout: 60_000 });
}

/** Each change asks, shows its command, and says when it is done. */
export async function jobsAreChanged(page, cluster) {
  await page.goto(`http://${cluster.scheduler}/#/job/shop`);
  const job = async () => cluster.jobs("jobs/shop");
  const before = (await job()).version;
  await page.getByLabel("Instances").fill("3");
  assert.ok((await page.locator("#form-scale code").first().textContent()).includes("meseta job scale shop 3"));
  await change(page, "scale", "Scale", "Done: 3 run.");
  assert.equal((await job()).running, 3);
  await change(page, "restart", "Restart", "Done: all tasks are new.");
  const restarted = (await job()).version;
  assert.ok(restarted > before, `${restarted}`);
  await page.locator("#form-revert").waitFor();
  await change(page, "revert", "Go back", `Done: version ${before} runs.`);
  assert.equal((await job()).version, before);
  await change(page, "stop", "Stop", "Done: all its tasks have ended.");
  assert.equal((await job()).state, "stopped");
}

/** Instances of a job that is spread are moved by a form; of others, which never move, there is no such form. */
export async function rebalanced(page, cluster) {
  await cluster.submit({
    name: "wide", role: "ads", count: 2, task: { command: "exec sleep 100000" }, resources: small, constraints: [{ attribute: "rack", spread: true }],
  });
  await eventually("the instances", async () => (await cluster.jobs("jobs/wide")).state === "healthy", 60);
  await page.goto(`http://${cluster.scheduler}/#/job/shop`);
  await page.locator("#form-stop").waitFor();
  assert.equal(await page.locator("#form-rebalance").count(), 0);
  await page.goto(`http://${cluster.scheduler}/#/job/wide`);
  const form = page.locator("#form-rebalance");
  await form.waitFor();
  assert.ok((await form.locator("code").first().textContent()).includes("meseta job rebalance wide"));
  await change(page, "rebalance", "Rebalance", /^Accepted: .*(moves?|allow)\.$/);
  const { events } = await cluster.jobs("jobs/wide/history");
  assert.ok(events.some((event) => event.text.startsWith("to be rebalanced: ")), JSON.stringify(events));
}

/** The volume of an instance is shown, and destroyed by a form; then the instance has another one. */
export async function volumes(page, cluster) {
  const volume = { size: "16MB", path: "data" };
  await cluster.submit({ name: "db", role: "ads", task: { command: "exec sleep 100000" }, resources: small, volume });
  const used = () => eventually("a volume in use", async () => {
    const [one] = (await cluster.jobs("jobs/db")).volumes ?? [];
    return one?.state === "used" && one;
  }, 60);
  const { volume_id: first, hostname } = await used();
  await page.goto(`http://${cluster.scheduler}/#/job/db`);
  await page.getByRole("table", { name: "Volumes" }).waitFor();
  assert.deepEqual(await rowsOf(page, "Volumes"), [["0", first, "used", "16 MiB", "data", hostname]]);
  assert.ok((await page.locator("#form-release code").first().textContent()).includes("meseta job release db 0"));
  await change(page, "release", "Destroy", "Done: the instance no longer has the volume.");
  assert.notEqual((await used()).volume_id, first);
}

/** What a question is about stays what it was about: where that is there no more, nothing is done in its place. */
export async function changedQuestion(page, cluster) {
  const job = await cluster.jobs("jobs/db");
  const [volume] = job.volumes;
  let volumes = [volume, { ...volume, index: 3, volume_id: "another" }];
  const posted = [];
  const isJob = (url) => url.pathname === "/v1/jobs/db";
  const isRelease = (url) => url.pathname === "/v1/jobs/db/release";
  await page.route(isJob, (route) => route.fulfill({ json: { ...job, volumes } }));
  await page.route(isRelease, (route) => {
    posted.push(route.request().postDataJSON());
    return route.fulfill({ json: {} });
  });
  try {
    await page.goto(`http://${cluster.scheduler}/#/job/db`);
    const form = page.locator("#form-release");
    const ask = async () => {
      await form.getByLabel("Index").selectOption("3");
      await form.locator("button[type=submit]").click();
      await page.getByText("Destroy the volume of instance 3").waitFor();
    };
    await page.reload();
    await ask();
    volumes = [volume];
    await form.getByText("Not done: the state has changed meanwhile.").waitFor();
    assert.equal(await page.getByRole("dialog").count(), 0);
    assert.deepEqual(posted, []);
    volumes = [volume, { ...volume, index: 3, volume_id: "another" }];
    await page.reload();
    await ask();
    await page.getByRole("dialog").getByRole("button", { name: "Destroy" }).click();
    await eventually("the release", () => posted.length > 0);
    assert.deepEqual(posted, [{ index: 3, volume_id: "another" }], "the volume that was asked about");
  } finally {
    await page.unroute(isJob);
    await page.unroute(isRelease);
  }
}

/** Of very many instances a page has some, and what waits for an outcome asks for none. */
export async function manyInstances(page, cluster) {
  const TOTAL = 2_500;
  const job = await cluster.jobs("jobs/db");
  const [task] = job.tasks;
  const asked = [];
  const isJob = (url) => url.pathname === "/v1/jobs/db";
  const isChange = (url) => url.pathname === "/v1/jobs/db/restart";
  await page.route(isChange, (route) => route.fulfill({ json: {} }));
  await page.route(isJob, (route) => {
    const query = new URL(route.request().url()).searchParams;
    asked.push(query);
    if (query.get("tasks") === "false") return route.fulfill({ json: { ...job, tasks: undefined, obstacles: undefined } });
    const [from, limit] = [Number(query.get("offset")), Number(query.get("limit"))];
    const tasks = Array.from({ length: Math.min(limit, TOTAL - from) }, (_, at) => ({ ...task, task_id: `db.${from + at}` }));
    return route.fulfill({ json: { ...job, tasks, tasks_total: TOTAL } });
  });
  try {
    await page.goto(`http://${cluster.scheduler}/#/job/db`);
    await page.reload();
    await page.getByText("1 to 1000 of 2,500").waitFor();
    await page.getByRole("button", { name: "Next" }).click();
    await page.getByText("1001 to 2000 of 2,500").waitFor();
    assert.ok(asked.every((query) => query.has("limit")));
    const form = page.locator("#form-restart");
    await form.locator("button[type=submit]").click();
    asked.length = 0;
    await page.getByRole("dialog").getByRole("button", { name: "Restart" }).click();
    const without = () => asked.filter((query) => query.get("tasks") === "false").length;
    await eventually("looks for the outcome", () => without() > 6);
    assert.ok(asked.length - without() <= 2, `${asked.length - without()} of ${asked.length} looks ask for tasks`);
    assert.ok(await page.getByText("1001 to 2000 of 2,500").isVisible());
  } finally {
    await page.unroute(isJob);
    await page.unroute(isChange);
  }
}

/** A scheduler that leads is gone for good: its page names the others, and one click leads to the next leader's. */
export async function schedulerGoneForGood(context, schedulers) {
  const page = await context.newPage();
  try {
    const { leader, schedulers: all } = await schedulers.leads();
    await page.goto(`http://${leader}/`);
    await page.getByText(/Connected to/).waitFor();
    await page.getByText("No jobs.").waitFor();
    schedulers.kill(leader);
    await page.getByText(/Disconnected: .*Other addresses:/).waitFor();
    const others = page.locator(".connection a");
    assert.deepEqual(await others.allTextContents(), all.filter((one) => one !== leader));
    // At once: until the lease is over, that one names the one that is gone.
    await others.first().click();
    await page.getByText("No jobs.").waitFor({ timeout: 60_000 });
    await page.getByText(/Connected to/).waitFor();
    assert.notEqual(new URL(page.url()).host, leader);
  } finally {
    await page.close();
  }
}

/** What happens to a job is shown as it happens. */
export async function jobEvents(page, cluster) {
  await page.goto(`http://${cluster.scheduler}/#/events`);
  await page.getByText("connected", { exact: true }).waitFor();
  await cluster.submit({ name: "once", kind: "batch", role: "ads", task: { command: "true" }, resources: small });
  await eventually("the end", async () =>
    (await rowsOf(page, "Events")).some((row) => row[2] === "once" && row.at(-1).includes("finished")));
}
