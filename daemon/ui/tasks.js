// Tasks: a page of them at a time, and one with the course that it took.

import { html, useState } from "./vendor/preact-htm.js";
import { get, url, usePoll } from "./api.js";
import * as format from "./format.js";
import { Command, Facts, Filter, Id, Logs, State, Table, Waiting, link } from "./parts.js";

const PAGE = 200;

const began = (task) => task.statuses[0]?.timestamp ?? 0;

/** The table of tasks that several pages have. */
export function TaskTable({ tasks, empty }) {
  const columns = [
    { label: "Task", value: (task) => task.name, cell: (task) => html`<a href=${link("task", task.framework_id, task.id)} title=${task.id}>${task.name || task.id}</a>` },
    { label: "State", value: (task) => task.state, cell: (task) => html`<${State} name=${task.state} /><${Health} task=${task} />` },
    { label: "Logs", cell: (task) => html`<${Logs} task=${task} />` },
    { label: "Role", value: (task) => task.role ?? "", cell: (task) => html`<a href=${link("roles", task.role ?? "*")}>${task.role}</a>` },
    { label: "Resources", cell: (task) => format.resources(task.resources) },
    { label: "Began", value: began, cell: (task) => html`<time>${format.time(began(task))}</time>` },
    { label: "Agent", value: (task) => task.slave_id, cell: (task) => html`<${Id} of="agents" id=${task.slave_id} />` },
    { label: "Framework", value: (task) => task.framework_id, cell: (task) => html`<${Id} of="frameworks" id=${task.framework_id} />` },
  ];
  return html`<${Table} caption="Tasks" columns=${columns} rows=${tasks} id=${(task) => `${task.framework_id} ${task.id}`} empty=${empty} />`;
}

function Health({ task }) {
  const healthy = task.statuses.at(-1)?.healthy;
  if (healthy === undefined || task.state !== "TASK_RUNNING") return null;
  return healthy ? html` <span class="quiet">healthy</span>` : html` <span class="state bad">unhealthy</span>`;
}

export function Tasks({ query }) {
  const offset = Math.max(0, Math.floor(Number(query.offset)) || 0);
  // One more than is shown, which tells whether there are older ones.
  const { value, error } = usePoll(() => get("tasks", { limit: PAGE + 1, offset, order: "desc" }), [offset]);
  const [filter, setFilter] = useState(query.filter ?? "");
  if (!value) return html`<${Waiting} error=${error} />`;
  const wanted = filter.toLowerCase().split(/\s+/);
  const fits = (task) => {
    const text = `${task.name} ${task.id} ${task.state} ${task.role} ${task.framework_id} ${task.slave_id}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  const shown = value.tasks.slice(0, PAGE);
  const tasks = shown.filter(fits);
  const none = offset > 0 ? "No older tasks." : "No tasks.";
  const page = (at) => url(link("tasks"), { offset: at || undefined });
  return html`
    <div class="bar-of-tools"><${Filter} label="Filter" hint="name, state, role, id" value=${filter} onInput=${setFilter} />
      <nav aria-label="Pages of tasks">
        ${offset > 0 && html`<a href=${page(Math.max(0, offset - PAGE))}>Newer</a> `}
        <span>${shown.length ? `${offset + 1} to ${offset + shown.length}, newest first` : ""}</span>
        ${value.tasks.length > PAGE && html` <a href=${page(offset + PAGE)}>Older</a>`}
      </nav></div>
    <${TaskTable} tasks=${tasks} empty=${filter ? "No task on this page matches." : none} />`;
}

export function Task({ framework, id }) {
  const { value, error } = usePoll(() => get("tasks", { framework_id: framework, task_id: id }), [framework, id], 3);
  const task = value?.tasks[0];
  if (!value) return html`<${Waiting} error=${error} />`;
  if (!task) return html`<p>Task ${id} of framework ${framework} is unknown to the master; it may have ended long ago.</p>`;
  const word = format.shellWord(task.id);
  return html`
    <p class="lead">${task.name} <${State} name=${task.state} /> <${Logs} task=${task} /></p>
    <${Facts} items=${[
      ["Id", html`<code>${task.id}</code>`],
      ["Role", html`<a href=${link("roles", task.role ?? "*")}>${task.role}</a>`],
      ["Requested", format.resources(task.resources)],
      task.limits && ["Limits", format.resources(task.limits)],
      ["Framework", html`<a href=${link("frameworks", task.framework_id)}>${task.framework_id}</a>`],
      ["Agent", html`<a href=${link("agents", task.slave_id)}>${task.slave_id}</a>`],
      ["Executor", task.executor_id || "the agent's own"],
    ]} />
    <section><h2>Course</h2><${Course} statuses=${task.statuses} /></section>
    <section><h2>On the command line</h2>
      <${Command} text="meseta task ${word}" />
      <${Command} text="meseta logs ${word} --file=stderr --follow" /></section>`;
}

function Course({ statuses }) {
  const rows = statuses.map((status, at) =>
    ({ ...status, at, after: at > 0 ? status.timestamp - statuses[at - 1].timestamp : null }));
  const columns = [
    { label: "Time", cell: (row) => html`<time>${format.time(row.timestamp)}</time>` },
    { label: "After", number: true, cell: (row) => (row.after === null ? "" : `${row.after.toFixed(3)} s`) },
    { label: "State", cell: (row) => html`<${State} name=${row.state} />` },
    { label: "Said by", cell: (row) => format.state((row.source ?? "").replace("SOURCE_", "")) },
    { label: "Reason", cell: (row) => (row.reason ?? "").replace("REASON_", "").toLowerCase().replaceAll("_", " ") },
    { label: "Message", kind: "text", cell: (row) => row.message ?? "" },
  ];
  return html`<${Table} caption="Course of the task" columns=${columns} rows=${rows} id=${(row) => row.at} empty="No status yet." />`;
}
