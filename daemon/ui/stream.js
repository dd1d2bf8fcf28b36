// A stream of events as it comes. After a break it is opened again, and the break is shown.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import * as format from "./format.js";
import { Filter, State, Table } from "./parts.js";

const KEPT = 2000;
const RETRY_MS_MAX = 10_000;

/** Three heartbeats: a stream that says nothing for so long is dead, though nothing has closed it. */
const SILENT_MS = 45_000;

/**
 * What a stream has told since this was opened. `open(take, signal)` reads it to its end and gives `take` each event, first
 * one of the type SUBSCRIBED; `told` says what of an event is shown.
 */
export function Stream({ open, told }) {
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
  useEffect(() => follow(open, told, add, setLive), []);
  const [held, setHeld] = useState(null);
  const shown = (isPaused && held) || events;
  const wanted = filter.toLowerCase();
  const rows = shown.filter((row) => `${row.type} ${row.subject} ${row.text} ${row.state ?? ""}`.toLowerCase().includes(wanted));
  const pause = () => {
    setHeld(isPaused ? null : events);
    setPaused(!isPaused);
  };
  const columns = [
    { label: "Time", cell: (row) => html`<time>${format.time(row.at)}</time>` },
    { label: "Event", cell: (row) => row.type.toLowerCase().replaceAll("_", " ") },
    { label: "Subject", cell: (row) => (row.href ? html`<a href=${row.href}>${row.subject}</a>` : row.subject) },
    { label: "State", cell: (row) => row.state && html`<${State} name=${row.state} />` },
    { label: "Details", kind: "text", cell: (row) => row.text },
  ];
  return html`
    <div class="bar-of-tools"><${Filter} label="Filter" hint="failed, name" value=${filter} onInput=${setFilter} />
      <button type="button" aria-pressed=${isPaused} onClick=${pause}>${isPaused ? "Go on" : "Pause"}</button>
      <span role="status">${isLive ? html`<${State} name="connected" />` : html`<${State} name="disconnected" />`}
        ${` ${events.length} events since this page was opened`}</span></div>
    <${Table} caption="Events" columns=${columns} rows=${rows} id=${(row) => row.number}
      empty=${events.length ? "No event matches." : "Nothing has happened since this page was opened."} />`;
}

/** Keeps the stream open until it is ended; gives the function that ends it. */
function follow(open, told, add, setLive) {
  let isOver = false;
  let hasHeartbeats = false;
  let brokenAt = null;
  let wait = 500;
  let reading;
  let timer;
  /** Begins to wait for the next heartbeat. */
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      brokenAt ??= Date.now() - SILENT_MS;
      reading.abort();
    }, SILENT_MS);
  };
  const take = (event) => {
    hasHeartbeats ||= event.type === "HEARTBEAT";
    heard();
    if (!hasHeartbeats) clearTimeout(timer);
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
    while (!isOver) {
      reading = new AbortController();
      heard();
      try {
        await open(take, reading.signal);
      } catch {
        // The frame of the page says what is wrong.
      }
      clearTimeout(timer);
      if (isOver) return;
      brokenAt ??= Date.now();
      setLive(false);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, RETRY_MS_MAX);
    }
  };
  run();
  return () => {
    isOver = true;
    reading.abort();
  };
}
