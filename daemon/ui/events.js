// Events: what the master tells operators as it happens. After a break the stream is opened again, and the break is shown.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { subscribe } from "./api.js";
import * as format from "./format.js";
import { Filter, State, Table, link } from "./parts.js";

const KEPT = 2000;
const RETRY_MS_MAX = 10_000;

/** What of an event is shown: [subject, text, address]. */
function told(event) {
  const content = event[event.type.toLowerCase()] ?? {};
  const id = (one) => one?.value ?? "";
  switch (event.type) {
    case "TASK_ADDED": {
      const task = content.task;
      return [task.name, `on ${id(task.agent_id)}`, link("task", id(task.framework_id), id(task.task_id)), "TASK_STAGING"];
    }
    case "TASK_UPDATED": {
      const { status } = content;
      const why = [status.reason?.replace("REASON_", "").toLowerCase().replaceAll("_", " "), status.message];
      return [id(status.task_id), why.filter(Boolean).join(": "), link("task", id(content.framework_id), id(status.task_id)), content.state ?? status.state];
    }
    case "AGENT_ADDED": {
      const info = content.agent.agent_info;
      return [`${info.hostname}:${info.port}`, format.number(content.agent.total_resources?.length) + " resources", link("agents", id(info.id))];
    }
    case "AGENT_REMOVED": return [id(content.agent_id), "", link("agents", id(content.agent_id))];
    case "FRAMEWORK_ADDED":
    case "FRAMEWORK_UPDATED": {
      const info = content.framework.framework_info;
      return [info.name, (info.roles ?? []).join(", "), link("frameworks", id(info.id))];
    }
    case "FRAMEWORK_REMOVED": {
      const info = content.framework_info;
      return [info.name, "", link("frameworks", id(info.id))];
    }
    default: return ["", "", null];
  }
}

export function Events() {
  const [events, setEvents] = useState([]);
  const [isLive, setLive] = useState(false);
  const [isPaused, setPaused] = useState(false);
  const [filter, setFilter] = useState("");
  const number = useRef(0);
  const add = (type, rest) => {
    number.current += 1;
    const row = { number: number.current, at: Date.now() / 1000, type, ...rest };
    setEvents((last) => [row, ...last].slice(0, KEPT));
  };
  useEffect(() => follow(add, setLive), []);
  const [held, setHeld] = useState(null);
  const shown = (isPaused && held) || events;
  const wanted = filter.toLowerCase();
  const rows = shown.filter((row) => `${row.type} ${row.subject} ${row.text} ${row.state ?? ""}`.toLowerCase().includes(wanted));
  const pause = () => {
    setHeld(isPaused ? null : events);
    setPaused(!isPaused);
  };
  const columns = [
    { key: "at", label: "Time", cell: (row) => html`<time>${format.time(row.at)}</time>` },
    { key: "type", label: "Event", cell: (row) => row.type.toLowerCase().replaceAll("_", " ") },
    { key: "subject", label: "Subject", cell: (row) => (row.href ? html`<a href=${row.href}>${row.subject}</a>` : row.subject) },
    { key: "state", label: "State", cell: (row) => row.state && html`<${State} name=${row.state} />` },
    { key: "text", label: "Details", kind: "text", cell: (row) => row.text },
  ];
  return html`
    <div class="bar-of-tools"><${Filter} label="Filter" hint="failed, agent, name" value=${filter} onInput=${setFilter} />
      <button type="button" aria-pressed=${isPaused} onClick=${pause}>${isPaused ? "Go on" : "Pause"}</button>
      <span role="status">${isLive ? html`<${State} name="connected" />` : html`<${State} name="disconnected" />`}
        ${` ${events.length} events since this page was opened`}</span></div>
    <${Table} caption="Events" columns=${columns} rows=${rows} id=${(row) => row.number}
      empty=${events.length ? "No event fits." : "Nothing has happened since this page was opened."} />`;
}

/** Keeps the stream open until it is ended; gives the function that ends it. */
function follow(add, setLive) {
  const ending = new AbortController();
  let brokenAt = null;
  let wait = 500;
  const take = (event) => {
    if (event.type === "SUBSCRIBED") {
      if (brokenAt) add("RESUMED", { subject: "", text: `no events were received for ${format.span((Date.now() - brokenAt) / 1000)}` });
      brokenAt = null;
      wait = 500;
      setLive(true);
    } else if (event.type !== "HEARTBEAT") {
      const [subject, text, href, state] = told(event);
      add(event.type, { subject, text, href, state });
    }
  };
  const run = async () => {
    while (!ending.signal.aborted) {
      try {
        await subscribe(take, ending.signal);
      } catch {
        // The frame of the page says what is wrong.
      }
      if (ending.signal.aborted) return;
      brokenAt ??= Date.now();
      setLive(false);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, RETRY_MS_MAX);
    }
  };
  run();
  return () => ending.abort();
}
