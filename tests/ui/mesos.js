// The page of Mesos itself, served by --webui_dir: each of its views shows the cluster, without an error in the console.
//
//     git clone --depth 1 https://github.com/apache/mesos && node tests/ui/mesos.js mesos/src/webui
//
// What agents have is missing in it: it asks them by scripts from another origin, which no answer of a daemon may be
// (docs/decisions/0016-browsers-by-their-own-headers.md). MESETA and CHROMIUM are as in `run`.

import assert from "node:assert/strict";

import { chromium } from "playwright-core";

import { OPTIONS, problems, watch } from "./browser.js";
import { Cluster, eventually } from "./cluster.js";

const [dir] = process.argv.slice(2);
if (!dir) throw new Error("give the folder src/webui of Mesos");
process.env.MESETA_WEBUI_DIR = dir;

const cluster = await Cluster.start();
const browser = await chromium.launch(OPTIONS);
try {
  await cluster.fill();
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  watch(page, { isForeign: true });
  const { frameworks, slaves } = await cluster.get("state");
  const agent = slaves.find((one) => one.id === cluster.agents[0]);
  const framework = frameworks.find((one) => one.name.includes("web")) ?? frameworks[0];
  const show = async (part, texts) => {
    await page.goto(`http://${cluster.master}/#${part}`);
    for (const text of texts) {
      await eventually(`"${text}" at ${part}`, async () => (await page.locator("body").innerText()).includes(text));
    }
    console.log(`ok  ${part}`);
  };
  await show("/", ["Active Tasks", "batch", "Completed Tasks"]);
  await show("/frameworks", ["Active Frameworks", framework.name]);
  await show("/agents", [agent.hostname]);
  await show("/roles", ["eng"]);
  await show("/offers", ["Offers"]);
  await show("/maintenance", ["Maintenance"]);
  await show(`/frameworks/${framework.id}`, [framework.name]);
  await show(`/agents/${agent.id}`, ["Frameworks"]);
  await show(`/agents/${agent.id}/frameworks/${framework.id}`, ["Executors"]);
  assert.deepEqual(problems.filter((text) => !text.includes("ERR_BLOCKED_BY_RESPONSE.NotSameOrigin")), []);
  console.log("no error in the console");
} catch (error) {
  console.error("noticed before:", problems);
  throw error;
} finally {
  await browser.close();
  await cluster.end();
}
