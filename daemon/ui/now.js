// Now: what the cluster has and who has it, what fails, who is missing, and who leads.

import { html } from "./vendor/preact-htm.js";
import { get, usePoll } from "./api.js";
import { addressOf, listed } from "./agents.js";
import * as format from "./format.js";
import { Bar, FAILING, Facts, Logs, State, Table, Waiting, link } from "./parts.js";
import { Past, usePast } from "./plot.js";
import { may, useRights } from "./rights.js";

const RESOURCES = ["cpus", "mem", "disk", "gpus"];
const LOOKED_AT = 200;
const AMISS = "draining,drained,deactivated,disconnected,recovered,unreachable";

export function Now({ metrics, leader }) {
  const isMeasured = may(useRights(), "get_endpoints", "/metrics/snapshot");
  const roles = usePoll(() => get("roles"), []);
  const tasks = usePoll(() => get("tasks", { limit: LOOKED_AT, order: "desc" }), []);
  const past = usePast(isMeasured);
  const counts = metrics.value;
  if (isMeasured && !counts) return html`<${Waiting} error=${metrics.error} />`;
  const failing = (tasks.value?.tasks ?? []).filter((task) => FAILING.includes(task.state));
  return html`
    ${isMeasured
      ? html`<${Counts} counts=${counts} leader=${leader.value} />
        <section aria-labelledby="resources"><h2 id="resources">Resources</h2>
          <${Resources} counts=${counts} roles=${roles.value?.roles ?? []} used=${past.value?.used ?? {}} /></section>`
      : html`<p class="quiet">The figures of the whole cluster need the permission get_endpoints for /metrics/snapshot.</p>`}
    <section aria-labelledby="failing"><h2 id="failing">Failing tasks</h2>
      ${tasks.value
        ? html`<${Failing} tasks=${failing} />`
        : html`<${Waiting} error=${tasks.error} />`}</section>
    <section aria-labelledby="missing"><h2 id="missing">Agents that take no tasks</h2><${Missing} /></section>
    ${leader.value && html`<section aria-labelledby="masters"><h2 id="masters">Masters</h2><${Masters} ...${leader.value} /></section>`}
    ${isMeasured && html`<section aria-labelledby="past"><h2 id="past">The last hour</h2><${Past} /></section>`}`;
}

function Counts({ counts, leader }) {
  const of = (name) => format.number(counts[`master/${name}`] ?? 0);
  const failed = ["failed", "error", "lost"].reduce((sum, name) => sum + (counts[`master/tasks_${name}`] ?? 0), 0);
  return html`<${Facts} items=${[
    ["Agents active", html`<a href=${link("agents")}>${of("slaves_active")}</a>`],
    ["Inactive", of("slaves_inactive")],
    ["Unreachable", of("slaves_unreachable")],
    ["Awaited", of("slaves_recovered")],
    ["Frameworks", html`<a href=${link("frameworks")}>${of("frameworks_active")}</a>`],
    ["Tasks running", html`<a href=${link("tasks")}>${of("tasks_running")}</a>`],
    ["Staging", format.number((counts["master/tasks_staging"] ?? 0) + (counts["master/tasks_starting"] ?? 0))],
    ["Failed since start", format.number(failed)],
    ["Offers out", of("outstanding_offers")],
    ["This master", leader ? leader.role : "–"],
    ["Leader", leader?.leader ?? "–"],
    ["Up for", format.span(counts["master/uptime_secs"] ?? 0)],
  ]} />`;
}

/** The masters that are there; a few seconds after one ends it is listed still. */
function Masters({ masters, leader, role }) {
  const columns = [
    { label: "Master", cell: (master) => (master === location.host ? master : html`<a href="//${master}/">${master}</a>`) },
    { label: "Role", cell: (master) => html`<${State} name=${master === leader ? role : "following"} />` },
  ];
  return html`<${Table} caption="Masters" columns=${columns} rows=${masters} id=${(master) => master} empty="No master is known." />`;
}

/** What of a resource is held by whom, from the master's metrics and the reservations of roles. */
export function shares(name, counts, roles) {
  const total = counts[`master/${name}_total`] ?? 0;
  const allocated = counts[`master/${name}_used`] ?? 0;
  const offered = counts[`master/${name}_offered`] ?? 0;
  const reserved = roles.reduce((sum, role) => sum + (role.reserved?.[name] ?? 0), 0);
  const revocable = counts[`master/${name}_revocable_total`] ?? 0;
  const revocableUsed = counts[`master/${name}_revocable_used`] ?? 0;
  return { total, allocated, offered, reserved, revocable, revocableUsed, free: Math.max(0, total - allocated - offered) };
}

function Resources({ counts, roles, used }) {
  const rows = RESOURCES.map((name) => [name, shares(name, counts, roles)]).filter(([, share]) => share.total > 0);
  if (rows.length === 0) return html`<p class="quiet">No agent has any resources.</p>`;
  const hasRevocable = rows.some(([, share]) => share.revocable > 0);
  const cell = (name, kind, value) => html`<td class="number" data-of="${name}.${kind}">${format.amount(name, value)}</td>`;
  return html`<div class="scroll"><table class="resources">
    <caption class="hidden">Resources of the cluster by use</caption>
    <thead><tr><th scope="col">Resource</th><th scope="col" class="wide">Share</th>
      <th scope="col" class="number"><span class="key allocated" aria-hidden="true"></span>Allocated</th>
      <th scope="col" class="number"><span class="key offered" aria-hidden="true"></span>Offered</th>
      <th scope="col" class="number"><span class="key used" aria-hidden="true"></span>Used</th>
      <th scope="col" class="number"><span class="key free" aria-hidden="true"></span>Free</th>
      <th scope="col" class="number">Total</th>
      <th scope="col" class="number"><span class="key reserved" aria-hidden="true"></span>Reserved</th>
      ${hasRevocable && html`<th scope="col" class="number"><span class="key revocable" aria-hidden="true"></span>Revocable used</th>`}
    </tr></thead>
    <tbody>${rows.map(([name, share]) => html`<tr>
      <th scope="row">${name}</th>
      <td class="wide">
        <${Bar} name=${name} total=${share.total} parts=${[["allocated", "allocated", share.allocated], ["offered", "offered", share.offered]]} />
        ${name in used && html`<div class="thin"><${Bar} name=${name} total=${share.total} parts=${[["used", "used", used[name]]]} /></div>`}
        <div class="thin"><${Bar} name=${name} total=${share.total} parts=${[["reserved", "reserved", share.reserved]]} /></div>
        ${share.revocable > 0 && html`<div class="thin"><${Bar} name="revocable ${name}" total=${share.revocable}
          parts=${[["revocable", "used", share.revocableUsed]]} /></div>`}
      </td>
      ${cell(name, "allocated", share.allocated)}${cell(name, "offered", share.offered)}
      ${name in used ? cell(name, "used", used[name]) : html`<td class="number">–</td>`}${cell(name, "free", share.free)}
      ${cell(name, "total", share.total)}${cell(name, "reserved", share.reserved)}
      ${hasRevocable && html`<td class="number" data-of="${name}.revocable">${format.amount(name, share.revocableUsed)} of ${format.amount(name, share.revocable)}</td>`}
    </tr>`)}</tbody></table></div>`;
}

function Failing({ tasks }) {
  const last = (task) => task.statuses.at(-1)?.timestamp ?? 0;
  const columns = [
    { label: "Task", value: (task) => task.name, cell: (task) => html`<a href=${link("task", task.framework_id, task.id)}>${task.name}</a>` },
    { label: "State", value: (task) => task.state, cell: (task) => html`<${State} name=${task.state} />` },
    { label: "Role", value: (task) => task.role, cell: (task) => task.role },
    { label: "When", value: last, cell: (task) => html`<time title=${format.time(last(task))}>${format.ago(last(task))}</time>` },
    { label: "Logs", cell: (task) => html`<${Logs} task=${task} />` },
  ];
  return html`<${Table} caption="Failing tasks" columns=${columns} rows=${tasks} id=${(task) => `${task.framework_id} ${task.id}`}
    empty="None of the last ${LOOKED_AT} tasks failed." sorted=${{ label: "When", down: true }} />`;
}

function Missing() {
  const list = usePoll(() => get("slaves", { state: AMISS, limit: LOOKED_AT }), []);
  if (!list.value) return html`<${Waiting} error=${list.error} />`;
  const columns = [
    { label: "Agent", value: addressOf, cell: (agent) => html`<a href=${link("agents", agent.id)}>${addressOf(agent)}</a>` },
    { label: "State", value: (agent) => agent.standing, cell: (agent) => html`<${State} name=${agent.standing} />` },
    { label: "Id", cell: (agent) => html`<code>${agent.id}</code>` },
  ];
  return html`<${Table} caption="Agents that take no tasks" columns=${columns} id=${(agent) => agent.id}
    rows=${listed(list.value)} empty="All agents are connected and take tasks." />
    ${list.value.total > LOOKED_AT && html`<p class="quiet">${LOOKED_AT} of ${format.number(list.value.total)} are shown.</p>`}`;
}
