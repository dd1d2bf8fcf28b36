// The page on a large cluster, whose agents and tasks are simulated: how soon it shows something, what memory the tab
// has, what it asks for, and how long others wait for the master meanwhile.
//
//     cargo build --release -p meseta && cargo build --release -p meseta-tests --example load
//     cd tests/ui && npm ci --ignore-scripts && node scale.js [AGENTS] [TASKS] [MINUTES]
//
// LOAD names another `load` example (its master is `meseta` in the folder above), CHROMIUM another browser. The numbers
// are printed, and compared with nothing.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { Agent, get } from "node:http";
import path from "node:path";
import { performance } from "node:perf_hooks";

import { chromium } from "playwright-core";

import { OPTIONS, problems, watch } from "./browser.js";

const LOAD = process.env.LOAD ?? path.resolve(import.meta.dirname, "../../target/release/examples/load");
const [agents = "10000", tasks = "200000", minutes = "10"] = process.argv.slice(2);
const PARTS = ["", "roles", "frameworks", "tasks", "agents", "events", "operate"];
const BETWEEN_READS_MS = 50;
const CONTROL_S = 60;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const keptAlive = new Agent({ keepAlive: true, maxSockets: 1 });

/** One GET by somebody else, in milliseconds until the whole answer is there. */
function read(url) {
  const from = performance.now();
  return new Promise((resolve, reject) => {
    get(url, { agent: keptAlive }, (answer) => {
      answer.on("end", () => resolve(performance.now() - from)).on("error", reject).resume();
    }).on("error", reject);
  });
}

/** Small reads, one after the other, until `isOver`: the milliseconds of each, by path. */
async function others(master, paths, isOver) {
  const all = Object.fromEntries(paths.map((at) => [at, []]));
  while (!isOver()) {
    for (const at of paths) {
      all[at].push(await read(`http://${master}${at}`));
      await pause(BETWEEN_READS_MS);
    }
  }
  return all;
}

function report(what, all) {
  for (const [at, times] of Object.entries(all)) {
    const sorted = [...times].sort((a, b) => a - b);
    const of = (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]?.toFixed(1);
    console.log(`${what}: ${at} p50 ${of(0.5)} ms, p99 ${of(0.99)} ms, longest ${of(1)} ms (${sorted.length} times)`);
  }
}

/** Megabytes of a process: resident, and its share of what several have. */
function memory(pid) {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
  const of = (name) => Math.round(Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(text)[1]) / 1024);
  return { resident: of("Rss"), share: of("Pss"), own: of("Private_Dirty") };
}

async function cluster(body) {
  const load = spawn(LOAD, ["stay", agents, tasks, ...(process.env.MASTER_FLAGS?.split(" ") ?? [])], { stdio: ["pipe", "pipe", "inherit"] });
  try {
    let said = "";
    for await (const piece of load.stdout) {
      said += piece;
      if (said.includes("\n")) break;
    }
    console.log(said.trim());
    const [master, pid] = said.split(" ");
    await body(master, Number(pid));
  } finally {
    load.stdin.end();
    if (load.exitCode === null) await new Promise((resolve) => load.once("exit", resolve));
  }
}

/** What was asked for, by path: how often, and how large and how slow the answers were. */
function counted(page) {
  const asked = {};
  page.on("requestfinished", async (request) => {
    const at = new URL(request.url()).pathname;
    if (at.startsWith("/ui/")) return;
    const { responseBodySize } = await request.sizes().catch(() => ({ responseBodySize: 0 }));
    const one = (asked[at] ??= { times: 0, bytes: 0, ms: 0 });
    one.times += 1;
    one.bytes = Math.max(one.bytes, responseBodySize);
    one.ms = Math.max(one.ms, Math.round(request.timing().responseEnd));
  });
  return asked;
}

async function tab(browser, page) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const renderers = processInfo.filter((one) => one.type === "renderer").map((one) => memory(one.id));
  const largest = renderers.sort((a, b) => b.resident - a.resident)[0];
  const own = await page.context().newCDPSession(page);
  const { usedSize } = await own.send("Runtime.getHeapUsage");
  return `${largest.resident} MB resident, ${largest.share} MB with its share of what Chromium's processes share, ` +
    `${Math.round(usedSize / 1048576)} MB of objects`;
}

await cluster(async (master, pid) => {
  const [agent] = (await (await fetch(`http://${master}/state-summary`)).json()).slaves;
  const paths = ["/health", "/leader", "/quota", `/slaves?slave_id=${agent.id}`];
  const until = Date.now() + CONTROL_S * 1000;
  report("without a page", await others(master, paths, () => Date.now() > until));
  const browser = await chromium.launch(OPTIONS);
  try {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    watch(page);
    const asked = counted(page);
    const from = performance.now();
    await page.goto(`http://${master}/`);
    await page.getByRole("table", { name: "Resources of the cluster by use" }).waitFor({ timeout: 60_000 });
    const whole = performance.now() - from;
    const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
    console.log(`first paint after ${Math.round(paint)} ms, the resources after ${Math.round(whole)} ms`);
    let isOver = false;
    const reading = others(master, paths, () => isOver);
    const end = Date.now() + Number(minutes) * 60_000;
    const each = (Number(minutes) * 60_000) / PARTS.length;
    for (const part of PARTS) {
      const begun = performance.now();
      await page.goto(`http://${master}/#/${part}`);
      await page.locator("main table tbody tr, main form, main .quiet:not([role])").first().waitFor({ timeout: 60_000 });
      const shown = Math.round(performance.now() - begun);
      await pause(Math.max(0, Math.min(each, end - Date.now())));
      console.log(`#/${part}: shown after ${shown} ms; at the end ${await tab(browser, page)}; master ${memory(pid).resident} MB`);
    }
    isOver = true;
    report("with the page open", await reading);
    for (const [at, { times, bytes, ms }] of Object.entries(asked)) console.log(`asked ${at}: ${times} times, at most ${bytes} bytes and ${ms} ms`);
    console.log(`problems: ${JSON.stringify(problems)}`);
  } finally {
    await browser.close();
  }
});
