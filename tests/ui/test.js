// Opens each page in a browser and compares it with the API; works it by keyboard; watches what the browser asks for.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";

import { chromium } from "playwright-core";

import { eachItsOwn, nobody } from "./access.js";
import { OPTIONS, breaking, problems, rowsOf, watch } from "./browser.js";
import { Cluster, FAILING, LAST_LINE, Schedulers, eventually } from "./cluster.js";
import { brokenStream, goneForGood, lastTasks, lateAnswers, lostAgents, nextLeader, oddAnswers, outcomes, silentStream } from "./failures.js";
import {
  changedQuestion, everyReason, fillJobs, fromJobToLog, jobEvents, jobsAreChanged, jobsEqualTheApi, manyInstances, oneJob, rebalanced, schedulerGoneForGood, volumes, whyItWaits,
} from "./jobs.js";

const PICTURES = path.resolve(import.meta.dirname, "../../docs/page");
const PICTURE_BYTES_MAX = 150 * 1024;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let page;
let cluster;
const checked = [];

async function step(name, body) {
  const from = Date.now();
  await body();
  checked.push(name);
  console.log(`ok  ${name} (${Date.now() - from} ms)`);
}

async function open(fragment, title) {
  await page.goto(`http://${cluster.master}/#/${fragment}`);
  await page.getByRole("heading", { level: 1, name: title, exact: true }).waitFor();
}

const rows = (caption) => rowsOf(page, caption);

async function picture(name, colours = "light") {
  await page.emulateMedia({ colorScheme: colours });
  await page.waitForTimeout(300);
  const file = path.join(PICTURES, `${name}.png`);
  await page.screenshot({ path: file });
  await page.emulateMedia({ colorScheme: "light" });
  assert.ok(statSync(file).size <= PICTURE_BYTES_MAX, `${file} has ${statSync(file).size} bytes`);
}

async function accessible(name) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run());
  for (const one of found.violations.filter((violation) => ["serious", "critical"].includes(violation.impact))) {
    problems.push(`axe on ${name}: ${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
  }
}

const plain = (value) => (Math.round(value * 1000) / 1000).toLocaleString("en", { maximumFractionDigits: 3 });

async function now() {
  await open("", "Now");
  await page.getByRole("table", { name: "Failing tasks" }).waitFor();
  const [metrics, { roles }] = [await cluster.get("metrics/snapshot"), await cluster.get("roles")];
  const shown = (what) => page.locator(`[data-of="${what}"]`).textContent();
  assert.equal(await shown("cpus.total"), plain(metrics["master/cpus_total"]));
  assert.equal(await shown("cpus.allocated"), plain(metrics["master/cpus_used"]));
  const amounts = async (...names) => Promise.all(names.map(async (name) => Number((await shown(`cpus.${name}`)).replaceAll(",", ""))));
  await eventually("what is offered of what is not revocable, and the rest", async () => {
    const { slaves } = await cluster.get("slaves");
    const [total, allocated, offered, free] = await amounts("total", "allocated", "offered", "free");
    const sum = slaves.reduce((sum, agent) => sum + (agent.offered_resources.cpus ?? 0), 0);
    return offered === Math.round(sum * 1000) / 1000 && Math.abs(total - allocated - offered - free) < 0.01;
  });
  const reserved = roles.reduce((sum, role) => sum + (role.reserved.cpus ?? 0), 0);
  assert.equal(await shown("cpus.reserved"), plain(reserved));
  assert.ok(reserved > 0, "something is reserved");
  await eventually("what is used, as the master keeps it", async () => {
    const { cpus } = await cluster.get("metrics/history");
    return cpus.total.at(-1) === metrics["master/cpus_total"] && (await shown("cpus.used")) === plain(cpus.used.at(-1));
  });
  assert.equal(await shown("mem.total"), `${plain(metrics["master/mem_total"] / 1024)} GiB`);
  const revocable = ["used", "total"].map((what) => plain(metrics[`master/cpus_revocable_${what}`]));
  assert.equal(await shown("cpus.revocable"), revocable.join(" of "));
  assert.ok(metrics["master/cpus_revocable_used"] > 0, "something revocable is used");
  assert.deepEqual(await rows("Masters"), [[cluster.master, "leading"]]);
  const fact = (name) => page.locator(".facts > div", { has: page.locator("dt", { hasText: new RegExp(`^${name}$`) }) }).locator("dd").textContent();
  assert.equal(await fact("Tasks running"), plain(metrics["master/tasks_running"]));
  assert.equal(await fact("Agents active"), plain(metrics["master/slaves_active"]));
  assert.equal(await fact("Leader"), (await cluster.get("leader")).leader);
  assert.deepEqual((await rows("Agents that take no tasks")).map((row) => row[2]), [cluster.agents[1]]);
  const failing = await rows("Failing tasks");
  assert.ok(failing.some((row) => row[0] === FAILING && row[1] === "failed"), JSON.stringify(failing));
}

/** From what failed to the last line of its stderr, counted in clicks. */
async function fromFailureToLog() {
  await open("", "Now");
  await page.getByRole("link", { name: `stderr of ${FAILING}` }).first().click();
  const log = page.locator("pre.log");
  await eventually("the log", async () => (await log.textContent()).trimEnd().endsWith(LAST_LINE));
  assert.notEqual(new URL(page.url()).host, cluster.master, "the agent's own page shows it");
  assert.equal(await page.locator("main img").count(), 0);
  await picture("log");
  await accessible("log");
}

async function followedLog() {
  const task = (await cluster.get("tasks")).tasks.find((one) => one.name === "web");
  await open(`task/${encodeURIComponent(task.framework_id)}/${encodeURIComponent(task.id)}`, "Task");
  await page.getByRole("link", { name: "stdout of web" }).click();
  const log = page.locator("pre.log");
  const lines = async () => (await log.textContent()).trimEnd().split("\n").length;
  await eventually("lines", async () => (await log.textContent()).includes("GET /page/"));
  const before = await lines();
  await eventually("more lines", async () => (await lines()) > before + 3);
}

/** On the page of the log that was followed: its file grows by so much between two looks. */
async function fastLog() {
  const grows = 1024 * 1024;
  let size = grows;
  let read = 0;
  await page.route("**/files/read?*", (route) => {
    const query = new URL(route.request().url()).searchParams;
    if (!query.has("offset")) {
      size += grows;
      return route.fulfill({ json: { data: "", offset: size } });
    }
    read = Number(query.get("offset")) + Number(query.get("length"));
    return route.fulfill({ json: { data: "x".repeat(Number(query.get("length"))), offset: Number(query.get("offset")) } });
  });
  try {
    await page.getByText("without what was written too fast to be shown").waitFor();
    await eventually("some rounds", () => size > 5 * grows);
    assert.ok(size - read <= grows + 64 * 1024, `read up to ${read} of ${size} bytes`);
  } finally {
    await page.unroute("**/files/read?*");
  }
}

async function roles() {
  await open("roles", "Roles");
  const shown = await rows("Roles");
  const api = (await cluster.get("roles")).roles;
  assert.equal(shown.length, api.length);
  const of = (name) => api.find((role) => role.name === name);
  const eng = shown.find((row) => row[0] === "eng");
  assert.equal(eng[1], plain(of("eng").weight));
  assert.ok(eng[3].startsWith(`cpus ${plain(of("eng").quota.guarantee.cpus)}`), eng[3]);
  assert.ok(eng[4].startsWith(`cpus ${plain(of("eng").quota.limit.cpus)}`), eng[4]);
  assert.ok(eng[6].startsWith(`cpus ${plain(of("eng").quota.consumed.cpus)}`), eng[6]);
  const metrics = await cluster.get("metrics/snapshot");
  const cpus = of("eng").allocated.cpus + of("eng/backend").allocated.cpus;
  const total = metrics["master/cpus_total"] + metrics["master/cpus_revocable_total"];
  assert.equal(eng[7], `${((100 * cpus) / total).toFixed(1)} % cpus`);
}

async function why() {
  await open("roles", "Roles");
  await page.getByRole("link", { name: "Why waiting? Role eng", exact: true }).click();
  // What is free changes with each offer.
  await eventually("a sentence for each reason", async () => {
    const { explanations } = await cluster.get("explain?role=eng");
    const text = await page.locator(".why").textContent();
    return explanations.length > 0 && explanations.every(({ reason }) => text.includes(reason));
  });
  await picture("role");
}

async function frameworks() {
  await open("frameworks", "Frameworks");
  const shown = await rows("Frameworks");
  const api = (await cluster.get("state-summary")).frameworks;
  assert.deepEqual(shown.map((row) => row.at(-1)).sort(), api.map((one) => one.id).sort());
  for (const one of api) {
    const row = shown.find((cells) => cells.at(-1) === one.id);
    assert.equal(row[2], String(one.TASK_RUNNING));
    assert.equal(row[4], plain(one.used_resources.cpus));
  }
  await page.getByRole("link", { name: api[0].name, exact: true }).first().click();
  await page.getByRole("heading", { level: 1, name: "Framework", exact: true }).waitFor();
}

async function tasks() {
  await open("tasks", "Tasks");
  const shown = await rows("Tasks");
  const api = (await cluster.get("tasks?limit=-1")).tasks;
  assert.equal(shown.length, api.length);
  assert.deepEqual(shown.map((row) => row[0]).sort(), api.map((task) => task.name).sort());
  await page.getByLabel("Filter").fill("failed");
  await eventually("the filtered", async () => (await rows("Tasks")).every((row) => row[1] === "failed"));
  assert.equal(await page.locator("main img").count(), 0, "markup in a name is a text");
  await page.getByRole("link", { name: FAILING, exact: true }).click();
  await page.getByText("Command exited with status 3").waitFor();
  const course = await rows("Course of the task");
  const failed = api.find((task) => task.name === FAILING);
  assert.deepEqual(course.map((row) => `TASK_${row[2].toUpperCase()}`), failed.statuses.map((status) => status.state));
  await picture("task");
}

async function agents() {
  await open("agents", "Agents");
  const shown = await rows("Agents");
  const { slaves } = await cluster.get("slaves");
  assert.equal(shown.length, slaves.length);
  const drained = slaves.find((agent) => agent.id === cluster.agents[1]);
  const row = shown.find((cells) => cells[0].endsWith(`:${drained.port}`));
  assert.equal(row[1], drained.drain_info.state.toLowerCase());
  const first = slaves.find((agent) => agent.id === cluster.agents[0]);
  const cells = shown.find((cells) => cells[0].endsWith(`:${first.port}`));
  assert.equal(cells[2], `${plain(first.used_resources.cpus)} of ${plain(first.resources.cpus)}`);
  assert.equal(cells[6], "rack:r1 ssd:true");
  await page.getByLabel("Filter").fill(`rack:r1 ${row[1]}`);
  await eventually("one agent", async () => (await rows("Agents")).length === 1);
  await open(`agents/${cluster.agents[0]}`, "Agent");
  assert.deepEqual(await rows("Reservations"), [["ads", "cpus 1 · mem 256 MiB"]]);
  await page.getByRole("link", { name: "Containers and their use" }).click();
  await page.getByRole("heading", { level: 1, name: "Containers" }).waitFor();
  const containers = await (await fetch(`http://${first.hostname}:${first.port}/containers`)).json();
  const there = await eventually("use", async () => {
    const all = await rows("Containers");
    return all.every((row) => !row[2].includes("…")) && all;
  });
  assert.deepEqual(there.map((row) => row.at(-1)).sort(), containers.map((one) => one.container_id).sort());
  await picture("containers");
  await accessible("containers");
}

/** The third agent oversubscribes CPUs, of which a task uses one. */
async function machine() {
  await open(`agents/${cluster.agents[2]}`, "Agent");
  await page.getByRole("link", { name: "Pressure, estimates and corrections" }).click();
  await page.getByRole("heading", { level: 1, name: "Machine" }).waitFor();
  const text = await (await fetch(new URL("/metrics", page.url()))).text();
  const metric = (sample) => Number(text.split("\n").find((line) => line.startsWith(`${sample} `)).split(" ")[1]);
  const cpus = (await rows("Estimates")).find((row) => row[0] === "cpus");
  const of = (family) => plain(metric(`meseta_agent_${family}{name="cpus"}`));
  assert.equal(cpus[2], `${of("revocable_allocated")} of ${of("revocable_resources")}`);
  assert.deepEqual([of("revocable_allocated"), of("revocable_resources")], ["1", "14"]);
  const corrections = await rows("Corrections");
  assert.equal(corrections.length, text.match(/^meseta_agent_qos_corrections_total\{/gm).length);
  await page.locator(".plot canvas").nth(1).waitFor();
  await eventually("pressure", async () => (await page.locator(".u-legend").first().textContent()).includes("memory"));
  await page.waitForTimeout(11_000);
  await picture("machine");
  await accessible("machine");
}

async function events() {
  await open("events", "Events");
  await page.getByText("connected", { exact: true }).waitFor();
  cluster.task("blink", "ads", "cpus:0.1;mem:32", "true");
  await eventually("the end of the task", async () =>
    (await rows("Events")).some((row) => row[2].startsWith("blink") && row[3] === "finished"));
  await page.getByLabel("Filter").fill("finished");
  await eventually("the filtered", async () => (await rows("Events")).every((row) => row.join(" ").includes("finished")));
  await page.getByLabel("Filter").fill("");
  await picture("events");
}

async function disconnected() {
  await open("", "Now");
  await page.getByText("Connected to").waitFor();
  await breaking(async () => {
    await page.context().setOffline(true);
    await page.getByText(/Disconnected: .* old; retrying/).waitFor();
    assert.ok(await page.getByRole("table", { name: "Failing tasks" }).isVisible(), "what was shown stays");
    await page.context().setOffline(false);
    await page.getByText("Connected to").waitFor();
  });
}

/** A daemon that stands still keeps its connections and says nothing. */
async function silent() {
  await open("", "Now");
  await page.getByText("Connected to").waitFor();
  await breaking(async () => {
    await page.route("**/*", () => {});
    await page.getByText(/Disconnected: no answer/).waitFor({ timeout: 60_000 });
    await page.unroute("**/*");
    await page.getByText("Connected to").waitFor();
  });
}

/** The page of a framework leads to the form that ends it, filled in. */
async function ending() {
  const { id } = (await cluster.get("state-summary")).frameworks.find((one) => one.active);
  await open(`frameworks/${encodeURIComponent(id)}`, "Framework");
  await page.getByRole("link", { name: "End this framework" }).click();
  await page.getByRole("heading", { level: 1, name: "Operate" }).waitFor();
  const field = page.locator("#form-teardown").getByLabel("Framework's id", { exact: true });
  assert.equal(await field.inputValue(), id);
}

/** Goes on with Tab until an element of this name has the focus. */
async function tabTo(what, isIt, max = 200) {
  for (let count = 0; count < max; count += 1) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => {
      const element = document.activeElement;
      return { tag: element.tagName, text: element.textContent.trim(), name: element.name, form: element.form?.id };
    });
    if (isIt(focused)) return;
  }
  throw new Error(`the keyboard does not get to ${what}`);
}

async function keyboard() {
  await open("", "Now");
  await tabTo("Operate", ({ tag, text }) => tag === "A" && text === "Operate");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Operate" }).waitFor();
  await tabTo("the role", ({ name, form }) => form === "form-weight" && name === "role");
  await page.keyboard.type("ads");
  await tabTo("the weight", ({ name, form }) => form === "form-weight" && name === "weight");
  await page.keyboard.type("3");
  assert.ok((await page.locator("#form-weight code").textContent()).includes("meseta weights set ads=3"));
  await page.keyboard.press("Enter");
  await page.getByText("Done: ads has weight 3.").waitFor();
  const weights = await cluster.get("weights");
  assert.equal(weights.find((one) => one.role === "ads").weight, 3);
  await picture("operate");
  const id = (await cluster.get("state-summary")).frameworks.find((one) => one.name.endsWith("api")).id;
  await tabTo("the framework", ({ name, form }) => form === "form-teardown" && name === "framework");
  await page.keyboard.type(id);
  const isButton = ({ tag, text, form }) => tag === "BUTTON" && form === "form-teardown" && text.startsWith("End it");
  await tabTo("the button", isButton);
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.press("Escape");
  await eventually("the dialog is closed", async () => (await page.getByRole("dialog").count()) === 0);
  assert.ok((await cluster.get("state-summary")).frameworks.some((one) => one.id === id), "nothing ended");
  // The focus is on the button again.
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await tabTo("End it", ({ tag, text }) => tag === "BUTTON" && text === "End it");
  await page.keyboard.press("Enter");
  await page.getByText("Done: the framework has ended.").waitFor();
  assert.ok(!(await cluster.get("state-summary")).frameworks.some((one) => one.id === id));
}

/** Fills a form, sends it, and waits for what it says. */
async function sent(id, values, said) {
  const form = page.locator(`#form-${id}`);
  for (const [label, value] of Object.entries(values)) await form.getByLabel(label, { exact: true }).fill(value);
  await form.locator("button[type=submit]").click();
  await form.getByText(said).waitFor();
}

async function forms() {
  await open("operate", "Operate");
  const [agent] = cluster.agents;
  const found = async () => (await cluster.get(`slaves?slave_id=${agent}`)).slaves[0];
  const configs = async () => (await cluster.get("quota")).configs ?? [];
  await sent("quota", { Role: "data", Guarantee: "cpus:0.5", Limit: "cpus:1;mem:512" }, "Done: the quota of data is set.");
  const set = (await configs()).find((one) => one.role === "data");
  assert.deepEqual([set.guarantees.cpus.value, set.limits.mem.value], [0.5, 512]);
  await sent("unquota", { Role: "data" }, "Done: data has no quota.");
  assert.ok(!(await configs()).some((one) => one.role === "data"));
  const part = { "Agent's id": agent, Role: "data", Resources: "cpus:0.5;mem:64" };
  await sent("reserve", part, "Done: data has cpus 0.5 · mem 64 MiB on this agent.");
  assert.equal((await found()).reserved_resources.data.cpus, 0.5);
  await sent("unreserve", { ...part, Resources: "cpus=1" }, 'is not an amount: write amounts as cpus:1;mem:128');
  await sent("unreserve", part, "Done: data has – on this agent.");
  assert.equal((await found()).reserved_resources.data, undefined);
  await sent("deactivate", { "Agent's id": agent }, "Done: the agent gets no new tasks; its tasks continue.");
  assert.equal((await found()).deactivated, true);
  await sent("reactivate", { "Agent's id": agent }, "Done: the agent gets new tasks again.");
  assert.equal((await found()).deactivated, false);
  await sent("schedule", { "Host names": "node8, node9", "Begins in minutes": "60", "Lasts hours": "2" }, "Done: the master asks frameworks to leave these machines.");
  // As a reader types, a key at a time.
  const typed = page.locator("#form-schedule");
  await typed.getByLabel("Host names", { exact: true }).fill("");
  await typed.getByLabel("Host names", { exact: true }).pressSequentially("node8 node9");
  assert.match(await typed.locator("code").first().textContent(), / node8 node9$/);
  const [scheduled] = (await cluster.get("maintenance/schedule")).windows;
  assert.deepEqual(scheduled.machine_ids.map((one) => one.hostname), ["node8", "node9"]);
  assert.equal(scheduled.unavailability.duration.nanoseconds, 7_200e9);
  const down = page.locator("#form-down");
  await down.getByLabel("Host names", { exact: true }).fill("node9");
  await down.locator("button[type=submit]").click();
  await page.getByRole("dialog").getByRole("button", { name: "Take down" }).click();
  await down.getByText("Done: these machines are down.").waitFor();
  const { down_machines: gone } = await cluster.get("maintenance/status");
  assert.deepEqual(gone.map((one) => one.hostname ?? one.id?.hostname), ["node9"]);
  await sent("up", { "Host names": "node9" }, "Done: these machines are up.");
}

async function drained() {
  await open("operate", "Operate");
  const [,, agent] = cluster.agents;
  const form = page.locator("#form-drain");
  await form.getByLabel("Agent's id", { exact: true }).fill(agent);
  await form.locator("button[type=submit]").click();
  await page.getByRole("dialog").getByRole("button", { name: "Drain" }).click();
  await form.getByText("Done: the agent is drained.").waitFor({ timeout: 60_000 });
  const [found] = (await cluster.get(`slaves?slave_id=${agent}`)).slaves;
  assert.equal(found.drain_info.state, "DRAINED");
  assert.equal(found.used_resources.cpus_revocable ?? 0, 0, "its task has ended");
}

/** Ten thousand agents, as one is made again and again: a page of them at a time, and all within reach. */
async function manyAgents() {
  const COUNT = 10_000;
  const [one] = (await cluster.get("slaves")).slaves;
  const all = Array.from({ length: COUNT }, (_, at) => ({ ...one, id: `many-S${at}`, hostname: `node${String(at).padStart(5, "0")}` }));
  await page.route("**/slaves?*", (route) => {
    const query = new URL(route.request().url()).searchParams;
    const found = all.filter((agent) => agent.hostname.includes(query.get("filter") ?? ""));
    const [from, limit] = [Number(query.get("offset") ?? 0), Number(query.get("limit"))];
    return route.fulfill({ json: { slaves: found.slice(from, from + limit), recovered_slaves: [], total: found.length } });
  });
  try {
    await open("agents", "Agents");
    const table = page.getByRole("table", { name: "Agents", exact: true });
    await table.waitFor();
    await page.getByText("1 to 200 of 10,000").waitFor();
    const drawn = await table.locator("tbody tr").count();
    assert.ok(drawn < 150, `${drawn} rows are drawn`);
    await page.locator(".scroll.long").focus();
    await page.keyboard.press("End");
    await page.getByRole("link", { name: `${all[199].hostname}:${one.port}` }).waitFor();
    await page.getByRole("button", { name: "Next" }).focus();
    await page.keyboard.press("Enter");
    await page.getByText("201 to 400 of 10,000").waitFor();
    await page.getByLabel("Filter").fill("node07777");
    await eventually("the filtered", async () => (await rows("Agents")).length === 1);
  } finally {
    await page.unroute("**/slaves?*");
  }
}

async function overview() {
  await open("", "Now");
  await page.waitForTimeout(11_000);
  await page.locator(".plot canvas").first().waitFor();
  await picture("now");
  await picture("now-dark", "dark");
  for (const [fragment, title] of [["", "Now"], ["roles", "Roles"], ["frameworks", "Frameworks"], ["tasks", "Tasks"],
    ["agents", "Agents"], ["events", "Events"], ["operate", "Operate"]]) {
    await open(fragment, title);
    await page.waitForTimeout(300);
    await accessible(title);
    if (["roles", "agents", "tasks"].includes(fragment)) await picture(fragment);
  }
}

/** After everything that counts tasks and frameworks: these jobs are more of them. */
async function jobs() {
  await fillJobs(cluster);
  await jobsEqualTheApi(page, cluster);
  await page.getByLabel("Filter").fill("");
  await page.mouse.move(0, 0);
  await picture("jobs");
  await accessible("Jobs");
}

async function job() {
  await oneJob(page, cluster);
  await picture("job");
  await accessible("a job");
  await jobsAreChanged(page, cluster);
}

const profile = mkdtempSync(path.join(tmpdir(), "meseta-ui-profile-"));
mkdirSync(PICTURES, { recursive: true });
cluster = await Cluster.start();
let browser;
try {
  await cluster.fill();
  browser = await chromium.launchPersistentContext(profile, {
    ...OPTIONS, viewport: { width: 1280, height: 800 }, timezoneId: "Europe/Berlin", locale: "en-GB",
  });
  page = browser.pages()[0] ?? (await browser.newPage());
  page.setDefaultTimeout(20_000);
  watch(page);
  await step("Now equals the API", now);
  await step("from a failed task to the last line of its stderr in one click", fromFailureToLog);
  await step("a log is followed", followedLog);
  await step("a log that is written faster than it is read is shown near its end", fastLog);
  await step("Roles equal the API", roles);
  await step("Why waiting? says what explain says", why);
  await step("Frameworks equal the API", frameworks);
  await step("Tasks equal the API, and names stay texts", tasks);
  await step("Agents and containers equal the API", agents);
  await step("10,000 agents are shown a page at a time", manyAgents);
  await step("the machine of an agent equals its metrics", machine);
  // Before other tasks come to this agent whose frameworks have left: the end of such a task is acknowledged by nobody.
  await step("an agent is drained by the form, which waits until it is", drained);
  await step("Events come live", events);
  await step("Pictures, and no serious finding of axe", overview);
  await step("a broken connection is said and mends by itself", disconnected);
  await step("a daemon that stands still is said not to answer", silent);
  await step("the page of a framework leads to the form that ends it", ending);
  await step("a weight is set and a framework ended by keyboard alone", keyboard);
  await step("each form of Operate does what it says", forms);
  await step("Jobs equal the API", jobs);
  await step("from a failing job to the last line of its stderr in two clicks", () => fromJobToLog(page, cluster));
  await step("a job equals the API and is scaled, restarted, reverted and stopped by forms", job);
  await step("a job that is spread is rebalanced by a form", () => rebalanced(page, cluster));
  await step("what keeps a job waiting is said as the API says it", () => whyItWaits(page, cluster));
  await step("what happens to jobs comes live", () => jobEvents(page, cluster));
  await step("a volume of a job is shown, and destroyed by a form", () => volumes(page, cluster));
  await step("very many instances are shown in pages", () => manyInstances(page, cluster));
  await step("the page of a job names each way to fail or to wait in one line", () => everyReason(page, cluster));
  await step("a question whose subject has changed does nothing", () => changedQuestion(page, cluster));
  await step("nobody is shown anything without a secret", nobody);
  await step("a reader sees only its own and gets no form that would be refused", eachItsOwn);
  await step("the stream of events goes on after a break", () => brokenStream(page.context(), cluster));
  await step("a stream that stays open and says nothing is opened again", () => silentStream(cluster));
  await step("what cannot be shown is one part of the page", () => oddAnswers(page.context(), cluster));
  await step("the last page of tasks leads to no older ones", () => lastTasks(page.context(), cluster));
  await step("agents that are not there lead nowhere, and those that are awaited are told", () => lostAgents(page.context(), cluster));
  await step("what is old is said to be old, and asked for no more often", () => lateAnswers(page.context(), cluster));
  await step("a change that was taken is not said to have failed", () => outcomes(page.context(), cluster));
  const several = await Cluster.start(3);
  try {
    await step("the leading master is killed, and the page goes on at the next", () => nextLeader(page.context(), several));
    await step("a master is gone for good, and its page names the others", () => goneForGood(page.context(), several));
    const schedulers = await Schedulers.start(several);
    await step("a scheduler is gone for good, and its page names the other", () => schedulerGoneForGood(page.context(), schedulers));
  } finally {
    await several.end();
  }
  assert.deepEqual(problems, [], "requests to other origins, errors in the console, markup that ran, findings of axe");
  console.log(`${checked.length} passed; 0 requests to other origins, 0 errors in the console`);
} catch (error) {
  console.error(error);
  if (problems.length) console.error("noticed before:", problems);
  if (page) await page.screenshot({ path: path.join(tmpdir(), "meseta-ui-failed.png") }).catch(() => {});
  process.exitCode = 1;
} finally {
  await browser?.close();
  await cluster.end();
  rmSync(profile, { recursive: true, force: true });
}
