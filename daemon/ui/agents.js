// Agents: all with what is left of each, and one with its reservations, attributes and tasks.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { get, usePoll } from "./api.js";
import * as format from "./format.js";
import { mayOperate } from "./operate.js";
import { Bar, Command, Facts, Filter, Pages, State, Table, Waiting, link } from "./parts.js";
import { useRights } from "./rights.js";

/** What an agent is at, in one word. `kind` is the list of `/slaves` that it is in. */
export function standing(agent, kind = "slaves") {
  if (kind === "unreachable_slaves") return "unreachable";
  if (kind === "gone_slaves") return "gone";
  if (kind === "recovered_slaves") return "recovered";
  if (agent.drain_info) return agent.drain_info.state.toLowerCase();
  if (agent.deactivated) return "deactivated";
  return agent.active ? "active" : "disconnected";
}

/** Where an agent is; of those that have left, the master has kept the host at most, and the id is all that names them. */
export const addressOf = ({ hostname, port, id }) => (hostname && port ? format.hostPort(hostname, port) : hostname || format.shortId(id));

/** Where the agent's own page is, if its address is known. Its scheme is taken to be this page's. */
export function agentUrl({ hostname, port }, fragment = "#/") {
  if (!hostname || !port) return null;
  return `${location.protocol}//${format.hostPort(hostname, port)}/${fragment}`;
}

/** All agents that the master lists, each with what it is at. */
export function listed(value) {
  return ["slaves", "recovered_slaves", "unreachable_slaves", "gone_slaves"].flatMap((kind) =>
    (value[kind] ?? []).map((agent) => ({ ...agent, standing: standing(agent, kind) })));
}

function attributes(agent) {
  return Object.entries(agent.attributes ?? {}).map(([name, value]) => `${name}:${value}`).join(" ");
}

const PAGE = 200;
const TYPING_MS = 300;

export function Agents({ query }) {
  const [typed, setTyped] = useState(query.filter ?? "");
  const [filter, setFilter] = useState(typed);
  useEffect(() => {
    const timer = setTimeout(() => setFilter(typed), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  return html`<${Filter} label="Filter" hint="rack:r1, draining, host, id" value=${typed} onInput=${setTyped} />
    <${Found} key=${filter} filter=${filter} />`;
}

/** The agents that have all words of the filter, as many at a time as a page has. */
function Found({ filter }) {
  const [offset, setOffset] = useState(0);
  const { value, error } = usePoll(() => get("slaves", { filter, offset, limit: PAGE }), [filter, offset], 10);
  if (!value) return html`<${Waiting} error=${error} />`;
  const rows = listed(value);
  const columns = [
    { label: "Agent", value: addressOf, cell: (agent) => html`<a href=${link("agents", agent.id)}>${addressOf(agent)}</a>` },
    { label: "State", value: (agent) => agent.standing, cell: (agent) => html`<${State} name=${agent.standing} />` },
    use("cpus"), use("mem"), use("disk"),
    { label: "Reserved to", value: reserved, cell: (agent) => reserved(agent) || "–" },
    { label: "Attributes", value: attributes, cell: (agent) => attributes(agent) || "–" },
    { label: "Id", value: (agent) => agent.id, cell: (agent) => html`<code title=${agent.id}>${format.shortId(agent.id)}</code>` },
  ];
  return html`
    <${Pages} of="agents" from=${offset} size=${PAGE} shown=${rows.length} total=${value.total} turn=${setOffset} />
    <${Table} caption="Agents" columns=${columns} rows=${rows} id=${(agent) => agent.id} sorted=${{ label: "Agent" }}
      empty=${filter ? "No agent matches." : "No agent is registered."} />`;
}

const reserved = (agent) => Object.keys(agent.reserved_resources ?? {}).join(", ");

function use(name) {
  return {
    label: name, value: (agent) => agent.used_resources?.[name] ?? 0,
    cell: (agent) => html`<${Use} agent=${agent} name=${name} />`,
  };
}

function Use({ agent, name }) {
  const total = agent.resources?.[name] ?? 0;
  const allocated = agent.used_resources?.[name] ?? 0;
  const offered = agent.offered_resources?.[name] ?? 0;
  if (total === 0) return "–";
  return html`<span class="share"><${Bar} name=${name} total=${total} parts=${[["allocated", "allocated", allocated], ["offered", "offered", offered]]} />
    ${format.amount(name, allocated)} of ${format.amount(name, total)}</span>`;
}

export function Agent({ id }) {
  const { value, error } = usePoll(() => get("slaves", { slave_id: id }), [id]);
  const rights = useRights();
  if (!value) return html`<${Waiting} error=${error} />`;
  const agent = listed(value).find((one) => one.id === id);
  if (!agent) return html`<p>Agent ${id} is unknown to the master.</p>`;
  const drain = agent.drain_info;
  const volumes = Object.values(agent.reserved_resources_full ?? {}).flat().filter((one) => one.disk?.persistence);
  const reservations = Object.entries(agent.reserved_resources ?? {});
  return html`
    <p class="lead">${addressOf(agent)} <${State} name=${agent.standing} />
      ${agentUrl(agent) && html` <a href=${agentUrl(agent)}>Containers and their use</a>
        · <a href=${agentUrl(agent, "#/machine")}>Pressure, estimates and corrections</a>
        <span class="quiet"> (the agent's own pages)</span>`}</p>
    <${Facts} items=${[
      ["Total", format.resources(agent.resources)],
      ["Allocated", format.resources(agent.used_resources)],
      ["Offered", format.resources(agent.offered_resources)],
      ["Attributes", attributes(agent) || "–"],
      ["Registered", format.time(agent.registered_time)],
      agent.unreachable_time && ["Unreachable since", format.time(agent.unreachable_time)],
      drain && ["Drain", `${drain.state.toLowerCase()}, begun ${format.time(agent.estimated_drain_start_time_seconds)}${drain.config?.mark_gone ? ", then gone for good" : ""}`],
      ["Id", html`<code>${agent.id}</code>`],
    ]} />
    <section><h2>Reservations</h2>
      <${Table} caption="Reservations" rows=${reservations} id=${([role]) => role} empty="Nothing is reserved." columns=${[
        { label: "Role", cell: ([role]) => html`<a href=${link("roles", role)}>${role}</a>` },
        { label: "Resources", cell: ([, all]) => format.resources(all) },
      ]} /></section>
    ${volumes.length > 0 && html`<section><h2>Persistent volumes</h2>
      <${Table} caption="Volumes" rows=${volumes} id=${(one) => `${one.role} ${one.disk.persistence.id}`} columns=${[
        { label: "Volume", cell: (one) => one.disk.persistence.id },
        { label: "Role", cell: (one) => one.role },
        { label: "Size", cell: (one) => format.megabytes(one.scalar?.value) },
        { label: "In the container", cell: (one) => one.disk.volume?.container_path ?? "–" },
      ]} /></section>`}
    <p><a href="${link("tasks")}?filter=${encodeURIComponent(id)}">Its tasks among the newest</a>
      ${mayOperate(rights, "agent") && html` · <a href="${link("operate")}?agent=${encodeURIComponent(id)}">Drain or reserve …</a>`}</p>
    <${Command} text="meseta agents" />`;
}
