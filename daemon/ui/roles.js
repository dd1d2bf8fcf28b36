// Roles: the tree with what each is promised, has and may have; and why one waits.

import { html, useState } from "./vendor/preact-htm.js";
import { get, usePoll } from "./api.js";
import * as format from "./format.js";
import { Bar, Command, Facts, Id, Table, Waiting, link } from "./parts.js";

/** What a role and those below it were allocated. */
function withDescendants(roles, name) {
  const sum = {};
  for (const role of roles) {
    if (role.name !== name && !role.name.startsWith(`${name}/`)) continue;
    for (const [resource, value] of Object.entries(role.allocated ?? {})) {
      if (typeof value === "number") sum[resource] = (sum[resource] ?? 0) + value;
    }
  }
  return sum;
}

/** The largest share of any resource of the cluster, revocable ones included, that a role was allocated: [share, resource]. */
export function dominant(roles, name, metrics) {
  let found = [0, null];
  for (const [resource, value] of Object.entries(withDescendants(roles, name))) {
    const total = metrics?.[`master/${resource}_total`] + metrics?.[`master/${resource}_revocable_total`];
    if (total > 0 && value / total > found[0]) found = [value / total, resource];
  }
  return found;
}

export function Roles({ metrics }) {
  const { value, error } = usePoll(() => get("roles"), []);
  if (!value) return html`<${Waiting} error=${error} />`;
  const roles = [...value.roles].sort((a, b) => (a.name < b.name ? -1 : 1));
  const depth = (role) => role.name.split("/").length - 1;
  const last = (role) => role.name.split("/").at(-1);
  const columns = [
    { label: "Role", cell: (role) => html`<a class="depth${Math.min(depth(role), 6)}" href=${link("roles", role.name)} title=${role.name}>${last(role)}</a>` },
    { label: "Weight", number: true, cell: (role) => format.number(role.weight) },
    { label: "Frameworks", number: true, cell: (role) => role.frameworks.length },
    { label: "Guarantee", cell: (role) => format.resources(role.quota?.guarantee) },
    { label: "Limit", cell: (role) => format.resources(role.quota?.limit) },
    { label: "Allocated", cell: (role) => format.resources(role.allocated) },
    { label: "Counts to quota", cell: (role) => format.resources(role.quota?.consumed) },
    { label: "Dominant share", cell: (role) => html`<${Share} roles=${roles} name=${role.name} metrics=${metrics} />` },
    { label: "Offers", cell: (role) => html`<a href=${link("roles", role.name)} aria-label="Why waiting? Role ${role.name}">Why waiting?</a>` },
  ];
  return html`<p class="quiet">A role's share and what counts to its quota include the roles below it.</p>
    <${Table} caption="Roles" columns=${columns} rows=${roles} id=${(role) => role.name} empty="No role is in use." />`;
}

function Share({ roles, name, metrics }) {
  const [share, resource] = dominant(roles, name, metrics);
  return html`<span class="share"><${Bar} name="share" total=${1} parts=${[["allocated", "of 1", share]]} />
    ${format.percent(share)}${resource && ` ${resource}`}</span>`;
}

export function Role({ name, metrics }) {
  const { value, error } = usePoll(() => get("roles"), [name]);
  if (!value) return html`<${Waiting} error=${error} />`;
  const role = value.roles.find((one) => one.name === name);
  const [share, resource] = dominant(value.roles, name, metrics);
  return html`
    ${role
      ? html`<${Facts} items=${[
          ["Weight", format.number(role.weight)],
          ["Guarantee", format.resources(role.quota?.guarantee)],
          ["Limit", format.resources(role.quota?.limit)],
          ["Allocated", format.resources(role.allocated)],
          ["Counts to quota", format.resources(role.quota?.consumed)],
          ["Offered", format.resources(role.offered)],
          ["Reserved", format.resources(role.reserved)],
          ["Dominant share", `${format.percent(share)}${resource ? ` of ${resource}` : ""}`],
        ]} />`
      : html`<p class="quiet">No framework is subscribed to this role, and the role has no settings.</p>`}
    <${Why} title="Why is ${name} waiting?" parameters=${{ role: name }} command="meseta explain --role=${format.shellWord(name)}" />
    ${role && role.frameworks.length > 0 && html`<section><h2>Frameworks</h2><ul>
      ${role.frameworks.map((id) => html`<li><a href=${link("frameworks", id)}>${id}</a></li>`)}</ul></section>`}`;
}

/** What keeps offers from a framework or a role, said in a sentence, and then agent by agent. */
export function Why({ title, parameters, command }) {
  const { value, error } = usePoll(() => get("explain", parameters), [JSON.stringify(parameters)]);
  const [isOpen, setOpen] = useState(false);
  if (!value) return html`<section><h2>${title}</h2><${Waiting} error=${error} /></section>`;
  const all = value.explanations;
  const columns = [
    { label: "Agent", cell: (one) => html`<${Id} of="agents" id=${one.slave_id} />` },
    { label: "Framework", cell: (one) => html`<${Id} of="frameworks" id=${one.framework_id} />` },
    { label: "Role", cell: (one) => one.role },
    { label: "Blocked", cell: (one) => (one.blocked ? "yes" : "no") },
    { label: "Reason", kind: "text", cell: (one) => one.reason },
    { label: "Left to offer", kind: "text", cell: (one) => one.available ?? "–" },
  ];
  return html`<section><h2>${title}</h2>
    <ul class="why">${sentences(all, value.agents).map((sentence) => html`<li>${sentence}</li>`)}</ul>
    <details open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}><summary>Agent by agent (${all.length})</summary>
      ${isOpen && html`<${Table} caption=${title} columns=${columns} rows=${all} id=${(one) => `${one.framework_id} ${one.role} ${one.slave_id}`} />`}
    </details>
    <${Command} text=${command} /></section>`;
}

/** One sentence for each reason, the one of most agents first. Of very many agents only the first are explained. */
export function sentences(explanations, total) {
  if (explanations.length === 0) return ["No framework waits: no framework requests resources here, or no agent exists."];
  const agents = new Set(explanations.map((one) => one.slave_id)).size;
  const reasons = new Map();
  for (const { reason, slave_id: agent, blocked } of explanations) {
    if (!reasons.has(reason)) reasons.set(reason, { blocked, on: new Set() });
    reasons.get(reason).on.add(agent);
  }
  const sorted = [...reasons].sort(([, a], [, b]) => b.on.size - a.on.size);
  return sorted.map(([reason, { blocked, on }]) => {
    const all = agents < total ? `the first ${agents} of ${total} agents` : `${agents} agents`;
    const where = on.size === agents && agents > 1 ? `all ${all}` : `${on.size} of ${all}`;
    return `${blocked ? "No offer" : "An offer is possible"} on ${where}: ${reason}.`;
  });
}
