// The machine of an agent: pressure, what estimators foretell against what is used, and what controllers corrected.

import { html, useRef } from "./vendor/preact-htm.js";
import { getText, usePoll } from "./api.js";
import * as format from "./format.js";
import { Bar, Facts, State, Table, Waiting } from "./parts.js";
import { Plot, push } from "./plot.js";

const PREFIX = "meseta_agent_";
const SHOWN = /^meseta_agent_(host|qos|oversubscribed|revocable|resources|executors_preempted)/;
const NAMES = ["cpus", "gpus", "mem", "disk"];
const PLOTTED_MAX = 720;
const CORRECTIONS_MAX = 100;

/** The samples of a page for Prometheus that are shown here: for each family a list of [labels, value]. */
export function families(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!SHOWN.test(line)) continue;
    const [, name, labels, value] = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line) ?? [];
    if (!name) continue;
    const pairs = [...(labels ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, one]) => [key, one]);
    (found[name.slice(PREFIX.length)] ??= []).push([Object.fromEntries(pairs), Number(value)]);
  }
  return found;
}

/** The value of a sample with these labels; undefined where there is none. */
function valueOf(all, family, labels = {}) {
  const fits = ([given]) => Object.entries(labels).every(([name, value]) => given[name] === value);
  return all[family]?.find(fits)?.[1];
}

/** What is kept between two looks: series for the plots, and corrections that were counted meanwhile. */
const nothing = () => ({ pressure: [[], [], [], []], estimates: [[], [], [], [], []], busy: null, counts: null, corrections: [] });

function look(all, kept) {
  const now = Date.now() / 1000;
  const stalled = (resource) => valueOf(all, "host_pressure_ratio", { resource, share: "some" });
  const percent = (share) => (share === undefined ? null : 100 * share);
  push(kept.pressure, [now, percent(stalled("cpu")), percent(stalled("memory")), percent(stalled("io"))], PLOTTED_MAX);
  const busy = valueOf(all, "host_cpu_busy_seconds_total");
  const used = kept.busy && busy >= kept.busy[1] ? (busy - kept.busy[1]) / (now - kept.busy[0]) : null;
  kept.busy = [now, busy];
  const foretold = (quantity) => valueOf(all, "oversubscribed_forecast", { name: "cpus", quantity }) ?? null;
  push(kept.estimates, [now, used, foretold("used"), foretold("peak"), foretold("total")], PLOTTED_MAX);
  const corrections = all.qos_corrections_total ?? [];
  for (const [at, [{ detector, action }, times]] of corrections.entries()) {
    const more = kept.counts ? times - (kept.counts[at] ?? 0) : 0;
    if (more > 0) kept.corrections.unshift({ at: now, detector, action, times: more });
  }
  kept.counts = corrections.map(([, times]) => times);
  kept.corrections.splice(CORRECTIONS_MAX);
  return { all, used, at: now };
}

export function Machine() {
  const kept = useRef(nothing());
  const { value, error } = usePoll(async () => look(families(await getText("metrics")), kept.current), []);
  if (!value) return html`<${Waiting} error=${error} />`;
  const { all, used, at } = value;
  const memory = (kind) => format.bytes(valueOf(all, "host_memory_bytes", { kind }));
  const load = (minutes) => format.number(valueOf(all, "host_load", { minutes }));
  const throttle = valueOf(all, "revocable_throttle_cpus");
  return html`
    <${Facts} items=${[
      ["CPUs", format.number(valueOf(all, "host_cpus"))],
      ["CPUs busy", format.number(used)],
      ["Load, 1, 5, 15 min", `${load("1")}, ${load("5")}, ${load("15")}`],
      ["Memory available", `${memory("available")} of ${memory("total")}`],
      ["Revocable work held to", throttle >= 0 ? `${format.number(throttle)} cpus` : "–"],
      ["Frozen", format.number(valueOf(all, "revocable_frozen"))],
      ["Executors preempted", format.number(valueOf(all, "executors_preempted_total"))],
      ["Oversubscription", valueOf(all, "oversubscribed_stopped") === 1 ? "stopped by the controller" : "not stopped"],
    ]} />
    <section><h2>Pressure</h2>
      <${Plot} label="Percent of the last ten seconds in which a process waited for the resource" series=${kept.current.pressure}
        labels=${["cpu", "memory", "io"]} unit="%" max=${100} version=${at} /></section>
    <section><h2>Estimates against use</h2><${Estimates} all=${all} />
      <${Plot} label="CPUs: busy, and of the estimator's forecast used, peak, and total to be oversubscribed" series=${kept.current.estimates}
        labels=${["busy", "used", "peak", "total"]} unit="" version=${at} /></section>
    <section><h2>Corrections</h2><${Corrections} all=${all} recent=${kept.current.corrections} /></section>`;
}

function Estimates({ all }) {
  const names = NAMES.filter((name) => valueOf(all, "resources", { name }) > 0);
  const of = (family, name, labels) => valueOf(all, family, { name, ...labels });
  const forecast = (quantity) => ({
    label: `Forecast: ${quantity}`, number: true,
    cell: (name) => format.amount(name, of("oversubscribed_forecast", name, { quantity })),
  });
  const columns = [
    { label: "Resource", cell: (name) => name },
    { label: "Allocated", cell: (name) => html`<span class="share"><${Bar} name=${name} total=${of("resources", name)}
        parts=${[["allocated", "allocated", of("resources_allocated", name)]]} />
        ${format.amount(name, of("resources_allocated", name))} of ${format.amount(name, of("resources", name))}</span>` },
    { label: "Revocable allocated", cell: (name) =>
      `${format.amount(name, of("revocable_allocated", name))} of ${format.amount(name, of("revocable_resources", name))}` },
    ...["promised", "used", "peak", "total"].map(forecast),
    { label: "Slack", number: true, cell: (name) => format.amount(name, of("oversubscribed_slack", name)) },
  ];
  return html`<${Table} caption="Estimates" columns=${columns} rows=${names} id=${(name) => name} />`;
}

const LEVELS = ["clear", "stop", "throttle", "kill"];

function Corrections({ all, recent }) {
  const rows = (all.qos_corrections_total ?? []).map(([{ detector, action }, times]) => ({ detector, action, times }));
  const level = (detector) => LEVELS[valueOf(all, "qos_detector_level", { detector })];
  const columns = [
    { label: "Detector", cell: (row) => row.detector },
    { label: "Action", cell: (row) => row.action },
    { label: "Since the agent's start", number: true, cell: (row) => format.number(row.times) },
    { label: "Level", cell: (row) => (level(row.detector) ? html`<${State} name=${level(row.detector)} />` : "–") },
    { label: "Last seen", number: true, cell: (row) => format.number(valueOf(all, "qos_detector_value", { detector: row.detector })) },
  ];
  const seen = [
    { label: "Time", cell: (row) => html`<time>${format.time(row.at)}</time>` },
    ...columns.slice(0, 2),
    { label: "Times", number: true, cell: (row) => format.number(row.times) },
  ];
  return html`<${Table} caption="Corrections" columns=${columns} rows=${rows} id=${(row) => `${row.detector} ${row.action}`} empty="No corrections since the start of the agent." />
    <h3>Since this page was opened</h3>
    <${Table} caption="Recent corrections" columns=${seen} rows=${recent} id=${(row) => `${row.at} ${row.detector} ${row.action}`} empty="None." />`;
}
