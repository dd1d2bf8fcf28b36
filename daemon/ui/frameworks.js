// Frameworks: who is subscribed, and what each runs and was offered.

import { html, useState } from "./vendor/preact-htm.js";
import { get, usePoll } from "./api.js";
import * as format from "./format.js";
import { Command, Facts, Filter, Id, State, Table, Waiting, link } from "./parts.js";
import { may, useRights } from "./rights.js";
import { Why } from "./roles.js";
import { TaskTable } from "./tasks.js";

/** Tasks of a framework that its page shows. */
const SHOWN = 200;

/** Whether a framework is there: active, connected without being active, or away. */
function standing(framework) {
  if (framework.active) return "active";
  if (framework.recovered) return "recovered";
  return framework.connected ? "deactivated" : "disconnected";
}

/** The page that a framework says it has, if a browser may be sent there. */
function Own({ framework }) {
  const address = URL.canParse(framework.webui_url ?? "") ? new URL(framework.webui_url) : null;
  if (!["http:", "https:"].includes(address?.protocol)) return "–";
  return html`<a href=${address.href} rel="noreferrer">${address.host}</a>`;
}

export function Frameworks() {
  const { value, error } = usePoll(() => get("state-summary", { slaves: false }), [], 10);
  const [filter, setFilter] = useState("");
  if (!value) return html`<${Waiting} error=${error} />`;
  const count = (framework, ...states) => states.reduce((sum, state) => sum + (framework[`TASK_${state}`] ?? 0), 0);
  const running = (framework) => count(framework, "RUNNING");
  const failed = (framework) => count(framework, "FAILED", "ERROR", "LOST");
  const cpus = (framework) => framework.used_resources.cpus;
  const mem = (framework) => framework.used_resources.mem;
  const columns = [
    { label: "Framework", value: (one) => one.name, cell: (one) => html`<a href=${link("frameworks", one.id)}>${one.name || one.id}</a>` },
    { label: "State", value: standing, cell: (one) => html`<${State} name=${standing(one)} />` },
    { label: "Running", number: true, value: running, cell: running },
    { label: "Failed", number: true, value: failed, cell: failed },
    { label: "cpus", number: true, value: cpus, cell: (one) => format.number(cpus(one)) },
    { label: "mem", number: true, value: mem, cell: (one) => format.megabytes(mem(one)) },
    { label: "Its page", cell: (one) => html`<${Own} framework=${one} />` },
    { label: "Id", cell: (one) => html`<code>${one.id}</code>` },
  ];
  const wanted = filter.toLowerCase();
  const rows = value.frameworks.filter((one) => `${one.name} ${one.id}`.toLowerCase().includes(wanted));
  return html`<${Filter} label="Filter" hint="name or id" value=${filter} onInput=${setFilter} />
    <${Table} caption="Frameworks" columns=${columns} rows=${rows} id=${(one) => one.id}
      empty=${filter ? "No framework matches." : "No framework is subscribed."} sorted=${{ label: "Framework" }} />`;
}

export function Framework({ id }) {
  const rights = useRights();
  const { value, error } = usePoll(() => get("frameworks", { framework_id: id, tasks: false }), [id]);
  const newest = usePoll(() => get("tasks", { framework_id: id, limit: SHOWN, order: "desc" }), [id]);
  if (!value) return html`<${Waiting} error=${error} />`;
  const framework = value.frameworks[0] ?? value.completed_frameworks[0];
  if (!framework) return html`<p>Framework ${id} is unknown to the master.</p>`;
  const isOver = value.frameworks.length === 0;
  return html`
    <${Facts} items=${[
      ["Name", framework.name],
      ["State", html`<${State} name=${isOver ? "completed" : standing(framework)} />`],
      ["Its page", html`<${Own} framework=${framework} />`],
      ["Roles", (framework.roles ?? [framework.role]).map((role) => html`<a href=${link("roles", role)}>${role}</a> `)],
      ["User", framework.user || "–"],
      ["Principal", framework.principal ?? "–"],
      ["Allocated", format.resources(framework.used_resources)],
      ["Offered", format.resources(framework.offered_resources)],
      ["Offers out", framework.offers.length],
      ["Registered", format.time(framework.registered_time)],
      isOver && ["Ended", format.time(framework.unregistered_time)],
      ["Failover timeout", format.span(framework.failover_timeout)],
      ["Id", html`<code>${framework.id}</code>`],
    ]} />
    <section><h2>Tasks</h2>${newest.value
      ? html`<${TaskTable} tasks=${newest.value.tasks} empty="This framework has no tasks." />
        ${newest.value.tasks.length === SHOWN && html`<p class="quiet">The newest ${SHOWN} are shown. All: <${Command} text="meseta tasks --framework=${id}" /></p>`}`
      : html`<${Waiting} error=${newest.error} />`}</section>
    ${framework.offers.length > 0 && html`<section><h2>Offers out</h2><${Offers} offers=${framework.offers} /></section>`}
    ${!isOver && framework.active && html`<${Why} title="Why is it waiting?" parameters=${{ framework_id: id }}
      command="meseta explain --framework=${id}" />`}
    ${!isOver && may(rights, "teardown_frameworks", framework.principal ?? "") && html`<p><a href="${link("operate")}?framework=${encodeURIComponent(id)}">End this framework …</a></p>`}`;
}

function Offers({ offers }) {
  const columns = [
    { label: "Offer", cell: (offer) => html`<code>${offer.id}</code>` },
    { label: "Agent", cell: (offer) => html`<${Id} of="agents" id=${offer.slave_id} />` },
    { label: "Resources", cell: (offer) => format.resources(offer.resources) },
  ];
  return html`<${Table} caption="Offers" columns=${columns} rows=${offers} id=${(offer) => offer.id} />`;
}
