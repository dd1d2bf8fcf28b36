// Amounts, times and names as texts. Pure: what depends on the time is given it.

const RESOURCES = ["cpus", "gpus", "mem", "disk"];

/** A number with at most three decimals; "–" for what is not known. */
export function number(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  return (Math.round(value * 1000) / 1000).toLocaleString("en", { maximumFractionDigits: 3 });
}

/** Megabytes (MiB) in the largest unit that leaves at least one. */
export function megabytes(value) {
  if (value === undefined || value === null) return "–";
  const units = ["MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${(Math.round(value * 100) / 100).toLocaleString("en")} ${units[unit]}`;
}

/** Bytes in the largest unit that leaves at least one. */
export function bytes(value) {
  if (value === undefined) return "–";
  if (value < 1024) return `${value} B`;
  return value < 1048576 ? `${(value / 1024).toFixed(1)} KiB` : megabytes(value / 1048576);
}

/** An amount of the resource of this name. */
export function amount(name, value) {
  return name === "mem" || name === "disk" ? megabytes(value) : number(value);
}

/** Resources as in `cpus 1 · mem 128 MiB`; those that are 0 are left out. */
export function resources(all) {
  const names = Object.keys(all ?? {}).filter((name) => all[name] !== 0 && all[name] !== "");
  names.sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const texts = names.map((name) =>
    typeof all[name] === "number" ? `${name} ${amount(name, all[name])}` : `${name} ${all[name]}`);
  return texts.join(" · ") || "–";
}

function rank(name) {
  const at = RESOURCES.indexOf(name);
  return at < 0 ? RESOURCES.length : at;
}

/** A share of 1 as percent. */
export function percent(share) {
  return share === undefined || !Number.isFinite(share) ? "–" : `${(share * 100).toFixed(1)} %`;
}

/** The seconds from the epoch that a date can have. */
const TIME_MAX = 8.64e12;

/** Seconds of the epoch as a time in the reader's zone; "–" for what is no time: tasks tell it. */
export function time(seconds) {
  if (!seconds || !(Math.abs(seconds) <= TIME_MAX)) return "–";
  const format = { dateStyle: "short", timeStyle: "medium", hourCycle: "h23" };
  return new Intl.DateTimeFormat("sv", format).format(new Date(seconds * 1000));
}

/** A span of seconds in its largest unit. */
export function span(seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** How long ago it was, at `now` (milliseconds). */
export function ago(seconds, now = Date.now()) {
  return seconds ? `${span(now / 1000 - seconds)} ago` : "–";
}

/** A host and a port as URLs write them: an IPv6 address stands in brackets. */
export function hostPort(host, port) {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** The end of an id, which tells it from others of the same master. */
export function shortId(id) {
  return id && id.length > 30 && id.includes("-") ? `…${id.slice(id.lastIndexOf("-"))}` : id;
}

/** A state of a task without what all have in common. */
export function state(name) {
  return (name ?? "").replace(/^TASK_/, "").toLowerCase();
}

/** A word that a shell takes as it is. */
export function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** `cpus:1;mem:128` as a map of numbers; an Error says what is wrong. */
export function parseScalars(text) {
  const scalars = {};
  for (const item of text.split(";").map((one) => one.trim()).filter(Boolean)) {
    const found = /^([A-Za-z_][\w.-]*):(\d+(?:\.\d+)?)$/.exec(item);
    if (!found) throw new Error(`"${item}" is not an amount: write amounts as cpus:1;mem:128`);
    scalars[found[1]] = Number(found[2]);
  }
  return scalars;
}
