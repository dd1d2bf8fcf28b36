// Lines over time, and what the cluster allocated and used over the last hour, which its master keeps.

import { html, useEffect, useRef } from "./vendor/preact-htm.js";
import { get, usePoll } from "./api.js";

const SAMPLES_MAX = 240;
const INTERVAL_S = 15;
const PAST = [["cpus", "allocated"], ["cpus", "used"], ["mem", "allocated"], ["mem", "used"]];
const past = { series: [[], [], [], [], []], used: {} };

/** Asks for what the master has sampled since it was asked last. */
async function askPast() {
  const history = await get("metrics/history", { since: past.series[0].at(-1) ?? 0 });
  history.times.forEach((time, at) => {
    const share = ([name, figure]) => {
      const total = history[name].total[at];
      return total > 0 ? (100 * history[name][figure][at]) / total : null;
    };
    push(past.series, [time, ...PAST.map(share)], SAMPLES_MAX);
    past.used = { cpus: history.cpus.used[at], mem: history.mem.used[at] };
  });
  return past;
}

/** The last hour of the cluster, and what it used last of each resource that is measured. */
export const usePast = (isMeasured) => usePoll(async () => (isMeasured ? askPast() : past), [isMeasured], INTERVAL_S);

/** Adds a value to each series; the oldest go. */
export function push(series, values, max) {
  values.forEach((value, at) => {
    series[at].push(value);
    if (series[at].length > max) series[at].shift();
  });
}

let loading;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "ui/vendor/uplot.js";
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("no plot"));
    document.head.append(script);
  });
  return loading;
}

/** Lines over time. `series` is times (s) and then values; `labels` and `unit` say what these are. */
export function Plot({ label, series, labels, unit, max, version }) {
  const box = useRef();
  const plot = useRef();
  useEffect(() => {
    let isOver = false;
    const draw = async () => {
      const uPlot = await load();
      plot.current?.destroy();
      plot.current = isOver ? null : new uPlot(options(box.current, labels, unit, max), copied(series), box.current);
    };
    draw();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    const fit = () => plot.current?.setSize({ width: box.current.clientWidth, height: 150 });
    addEventListener("resize", fit);
    return () => {
      isOver = true;
      removeEventListener("resize", fit);
      dark.removeEventListener("change", draw);
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(copied(series)), [version]);
  return html`<figure><figcaption>${label}</figcaption><div class="plot" ref=${box} role="img" aria-label=${label}></div></figure>`;
}

function copied(series) {
  return series.map((one) => [...one]);
}

function options(box, labels, unit, max) {
  const style = getComputedStyle(box);
  const colour = (name) => style.getPropertyValue(name).trim();
  const colours = [colour("--allocated"), colour("--used"), colour("--offered"), colour("--bad"), colour("--reserved")];
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: box.clientWidth, height: 150, cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, max ?? Math.max(high ?? 0, 0.1) * 1.1] } },
    axes: [{ ...axis, values: clock, space: 120 }, { ...axis, size: 44, values: (_, ticks) => ticks.map((tick) => `${tick}${unit}`) }],
    series: [{ value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString("sv") : "–") },
      ...labels.map((name, at) => ({
        label: name, stroke: colours[at], width: 1.5, points: { show: false },
        value: (_, value) => (value == null ? "–" : `${value.toFixed(1)}${unit}`),
      }))],
  };
}

function clock(_, ticks) {
  return ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("sv", { hour: "2-digit", minute: "2-digit", second: "2-digit" }));
}

/** The cluster's last hour. */
export function Past() {
  return html`<${Plot} label="Percent of the cluster over the last hour" series=${past.series}
    labels=${PAST.map((one) => one.join(" "))} unit="%" max=${100} version=${past.series[0].at(-1)} />`;
}
