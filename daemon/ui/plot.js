// What was in use, for as long as the page has been open, an hour at most. A master keeps no past figures.

import { html, useEffect, useRef } from "./vendor/preact-htm.js";

const SAMPLES_MAX = 720;
const samples = [[], [], []];

/** Adds a snapshot of a master's metrics to what is plotted; gives it back. */
export function remember(metrics) {
  const share = (name) => {
    const total = metrics[`master/${name}_total`];
    return total > 0 ? (100 * metrics[`master/${name}_used`]) / total : null;
  };
  push(samples, [Date.now() / 1000, share("cpus"), share("mem")], SAMPLES_MAX);
  return metrics;
}

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
  const colours = [colour("--allocated"), colour("--offered"), colour("--bad"), colour("--reserved"), colour("--revocable")];
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

/** The cluster's use since the page was opened. */
export function Past() {
  return html`<${Plot} label="Allocated since this page was opened, percent of the cluster" series=${samples}
    labels=${["cpus", "mem"]} unit="%" max=${100} version=${samples[0].at(-1)} />`;
}
