// Jobs: all of them, those that need somebody first.

import { html, useState } from "./vendor/preact-htm.js";
import { get, usePoll } from "./api.js";
import * as format from "./format.js";
import { Facts, Filter, State, Table, Waiting, link } from "./parts.js";

/** States, the ones to look at first. */
const RANKS = ["failed", "reverting", "pending", "updating", "stopping", "running", "healthy", "complete", "stopped"];

/** A place in the order of states: failures first, then those who wait and say why. */
function rank(job) {
  const at = RANKS.indexOf(job.state);
  const isFailing = job.failed > 0 && job.state !== "stopped";
  return `${isFailing ? 0 : 1}${(at < 0 ? RANKS.length : at).toString(36)} ${job.name}`;
}

/** A service is measured by what is healthy, a batch by what has succeeded. */
const done = (job) => (job.kind === "service" ? job.healthy : job.succeeded);

export function Jobs({ subscription }) {
  const { value, error } = usePoll(() => get("v1/jobs"), []);
  const [filter, setFilter] = useState("");
  if (!value) return html`<${Waiting} error=${error} />`;
  const wanted = filter.toLowerCase().split(/\s+/);
  const rows = value.jobs.filter((job) => {
    const text = `${job.name} ${job.kind} ${job.role} ${job.state} ${job.why}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
  const inRoles = new Map();
  value.jobs.forEach(({ name }) => inRoles.set(name, (inRoles.get(name) ?? 0) + 1));
  /** The name is the job's alone in its role. */
  const full = (job) => (inRoles.get(job.name) > 1 ? `${job.role}/${job.name}` : job.name);
  const columns = [
    { label: "Job", value: (job) => job.name, cell: (job) => html`<a href=${link("job", full(job))}>${job.name}</a>` },
    { label: "State", value: rank, cell: (job) => html`<${State} name=${job.state} />` },
    { label: "Kind", value: (job) => job.kind, cell: (job) => job.kind },
    { label: "Role", value: (job) => job.role, cell: (job) => job.role },
    { label: "Wanted", number: true, value: (job) => job.count, cell: (job) => format.number(job.count) },
    { label: "Running", number: true, value: (job) => job.running, cell: (job) => format.number(job.running) },
    { label: "Healthy or done", number: true, value: done, cell: (job) => format.number(done(job)) },
    { label: "Failed", number: true, value: (job) => job.failed, cell: (job) => format.number(job.failed) },
    { label: "Version", number: true, value: (job) => job.version, cell: (job) => job.version },
    { label: "Obstacle", kind: "text", cell: (job) => job.why },
  ];
  return html`
    <${Connected} ...${subscription} />
    <${Filter} label="Filter" hint="name, kind, role, state" value=${filter} onInput=${setFilter} />
    <${Table} caption="Jobs" columns=${columns} rows=${rows} id=${(job) => `${job.role}/${job.name}`}
      empty=${filter ? "No job matches." : html`No jobs. <code>meseta run FILE</code> submits a job.`} sorted=${{ label: "State" }} />`;
}

/** Without a master nothing is launched, and what is shown of tasks is from before. */
function Connected({ subscribed, master, framework_id: id }) {
  if (subscribed === false) {
    return html`<p class="trouble" role="alert">No master accepts the subscription${master && ` (the last master was ${master})`}: the scheduler launches nothing, and tasks may have ended since.</p>`;
  }
  return id && html`<${Facts} items=${[
    ["Master", html`<a href="${master}/">${master}</a>`],
    ["Framework", html`<a href="${master}/${link("frameworks", id)}"><code>${id}</code></a>`],
  ]} />`;
}
