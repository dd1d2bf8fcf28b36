// Parts that several pages are made of. Texts are always children of elements, never markup.

import { Component, html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { connection, otherPage, useConnection } from "./api.js";
import * as format from "./format.js";

/** The address of a page of this one: `#/task/a/b`. */
export function link(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/** The path and the parameters of the page that is looked at. */
export function useRoute() {
  const read = () => {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const parts = path.split("/").filter(Boolean).map(decoded);
    return { parts, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
  };
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const follow = () => setRoute(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The top of every page: the name, where one can go, and how the connection is. */
export function Frame({ name, title, pages, here, children }) {
  const main = useRef();
  useEffect(() => {
    document.title = `${title} · ${name}`;
  }, [title, name]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header>
      <a class="name" href="#/">${name}</a>
      <nav aria-label="Pages">
        ${pages.map(([page, label]) => html`
          <a href=${page ? link(page) : "#/"} aria-current=${page === here ? "page" : undefined}>${label}</a>`)}
      </nav>
      <${Connection} />
    </header>
    <main id="main" tabindex="-1" ref=${main}><h1>${title}</h1><${Content}>${children}<//></main>`;
}

const RETRY_MS = 10_000;

/** Holds what is wrong with a part of the page to that part: an error that nobody catches ends all rendering. */
class Content extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error, at: location.hash });
    setTimeout(() => this.setState({ error: null }), RETRY_MS);
  }

  render({ children }, { error, at }) {
    if (!error || at !== location.hash) return children;
    return html`<p class="trouble" role="alert">This part cannot be shown: ${error.message}</p>`;
  }
}

function Connection() {
  const { answeredAt, trouble, stale, going, late } = useConnection();
  const age = format.span((Date.now() - answeredAt) / 1000);
  if (going) return html`<p class="connection bad" role="status">Going to the leader, ${going}</p>`;
  if (trouble) {
    return html`<p class="connection bad" role="status">
      Disconnected: ${trouble}. The shown data is ${age} old; retrying.<${Others} /></p>`;
  }
  if (late) {
    return html`<p class="connection bad" role="status">
      Some of the shown data is from ${format.time(late.at / 1000)}: ${explained(late.error)}</p>`;
  }
  if (stale) return html`<p class="connection bad" role="status">The shown data may be outdated: ${stale}</p>`;
  return html`<p class="connection" role="status">Connected to ${location.host}</p>`;
}

/** The others, where this one may be gone for good: their pages are the same. */
function Others() {
  const { others } = connection;
  return others.length > 0 && html` Other addresses: ${others.map((other) => html`<a href=${otherPage(other)}>${other}</a> `)}`;
}

/** What is shown before there is an answer, and what is wrong with one. */
export function Waiting({ error }) {
  if (!error) return html`<p class="quiet" role="status">Loading …</p>`;
  return html`<p class="trouble" role="alert">${explained(error)}</p>`;
}

function explained(error) {
  if (error.status === 401) return "Not signed in: reload the page and give the credentials of the API.";
  if (error.status === 403) return `Not permitted: ${error.message}`;
  return error.message;
}

/** The end of an agent's or a framework's id, which leads to its page. */
export function Id({ of, id }) {
  return html`<a href=${link(of, id)} title=${id}>${format.shortId(id)}</a>`;
}

/** The state of a task or an agent as a word with a colour. */
export function State({ name }) {
  const text = format.state(name);
  return html`<span class="state ${TONES[text] ?? ""}">${text}</span>`;
}

const TONES = {
  running: "good", leading: "good", following: "quiet", suspended: "bad", recovering: "wait", finished: "quiet", active: "good", killed: "quiet", completed: "quiet", connected: "good",
  failed: "bad", error: "bad", lost: "bad", dropped: "bad", gone: "bad", gone_by_operator: "bad", unreachable: "bad",
  staging: "wait", starting: "wait", killing: "wait", draining: "wait", drained: "wait", deactivated: "wait",
  disconnected: "wait", recovered: "wait",
  healthy: "good", updating: "wait", reverting: "wait", pending: "wait", stopping: "wait",
};

/** States that a task does not leave by itself having done its work. */
export const FAILING = ["TASK_FAILED", "TASK_ERROR", "TASK_LOST", "TASK_DROPPED", "TASK_GONE", "TASK_UNREACHABLE"];

/** A bar of parts of a whole, each [class, label, amount]. */
export function Bar({ name, total, parts }) {
  const label = parts.map(([, what, value]) => `${what} ${format.amount(name, value)}`).join(", ");
  let at = 0;
  return html`
    <svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="${name}: ${label}">
      <rect class="free" width="1000" height="10" />
      ${parts.map(([kind, , value]) => {
        const width = total > 0 ? Math.max(0, Math.min(1000 - at, (value / total) * 1000)) : 0;
        const x = at;
        at += width;
        return html`<rect class=${kind} x=${x} width=${width} height="10" />`;
      })}
    </svg>`;
}

const ROW_PX = 29;
const ALL_SHOWN_MAX = 150;

/**
 * A table that is sorted by its column heads; of a long one only the rows in view are made.
 * A column: label, cell(row), and value(row) where it can be sorted; `number` aligns it to the right.
 */
export function Table({ caption, columns, rows, id, empty = "Nothing.", sorted }) {
  const [order, setOrder] = useState(sorted ?? null);
  const [top, setTop] = useState(0);
  const box = useRef();
  const arranged = useMemo(() => arrange(rows, columns, order), [rows, order]);
  if (rows.length === 0) return html`<p class="quiet">${empty}</p>`;
  const isLong = rows.length > ALL_SHOWN_MAX;
  const height = box.current?.clientHeight ?? 600;
  const from = isLong ? Math.max(0, Math.floor(top / ROW_PX) - 10) : 0;
  const to = isLong ? Math.min(rows.length, from + Math.ceil(height / ROW_PX) + 30) : rows.length;
  const turn = (label) => setOrder((last) => ({ label, down: last?.label === label ? !last.down : false }));
  return html`
    <div class=${isLong ? "scroll long" : "scroll"} ref=${box} tabindex=${isLong ? 0 : undefined}
        role=${isLong ? "region" : undefined} aria-label=${isLong ? caption : undefined}
        onScroll=${isLong ? (event) => setTop(event.target.scrollTop) : undefined}>
      <table aria-rowcount=${rows.length + 1}>
        <caption class="hidden">${caption}</caption>
        <thead><tr>${columns.map((column) => html`<${Head} column=${column} order=${order} turn=${turn} />`)}</tr></thead>
        <tbody>
          ${from > 0 && html`<tr class="space" aria-hidden="true"><${Space} px=${from * ROW_PX} /></tr>`}
          ${arranged.slice(from, to).map((row) => html`
            <tr key=${id(row)}>${columns.map((column, at) => at === 0
              ? html`<th scope="row" class=${column.kind}>${column.cell(row)}</th>`
              : html`<td class=${column.number ? "number" : column.kind}>${column.cell(row)}</td>`)}</tr>`)}
          ${to < rows.length && html`<tr class="space" aria-hidden="true"><${Space} px=${(rows.length - to) * ROW_PX} /></tr>`}
        </tbody>
      </table>
    </div>`;
}

function Space({ px }) {
  return html`<td style=${{ height: `${px}px` }}></td>`;
}

function Head({ column, order, turn }) {
  const isBy = order?.label === column.label;
  const kind = column.number ? "number" : column.kind;
  const sort = isBy ? (order.down ? "descending" : "ascending") : undefined;
  if (!column.value) return html`<th scope="col" class=${kind}>${column.label}</th>`;
  return html`<th scope="col" class=${kind} aria-sort=${sort}>
    <button type="button" class="sort" onClick=${() => turn(column.label)}>
      ${column.label}<span aria-hidden="true">${isBy ? (order.down ? " ↓" : " ↑") : ""}</span></button></th>`;
}

function arrange(rows, columns, order) {
  const column = order && columns.find((one) => one.label === order.label);
  if (!column) return rows;
  const sign = order.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    return x < y ? -sign : x > y ? sign : 0;
  });
}

/** Which rows of a longer list are shown, and buttons that turn to those before and after. */
export function Pages({ of, from, size, shown, total, turn }) {
  if (from === 0 && !(total > size)) return null;
  const button = (label, to, isThere) => isThere && html`<button type="button" onClick=${() => turn(to)}>${label}</button> `;
  return html`<nav aria-label="Pages of ${of}">
    ${button("Before", Math.max(0, from - size), from > 0)}
    ${from + 1} to ${from + shown} of ${format.number(total)}
    ${button("Next", from + size, from + size < total)}</nav>`;
}

/** A field that narrows what is shown. */
export function Filter({ label, value, onInput, hint }) {
  return html`<label class="filter">${label}
    <input type="search" value=${value} placeholder=${hint} onInput=${(event) => onInput(event.target.value)} /></label>`;
}

/** Names and what they stand for. */
export function Facts({ items }) {
  return html`<dl class="facts">${items.filter(Boolean).map(([name, value]) => html`
    <div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A command as one would type it. */
export function Command({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return html`<div class="command"><code>${text}</code>
    ${navigator.clipboard && html`<button type="button" onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>`}</div>`;
}

/** Asks before what cannot be undone; a native dialog keeps the keyboard in it and closes by Escape. */
export function Confirm({ question, detail, verb, onYes, onNo }) {
  const dialog = useRef();
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${onNo} aria-labelledby="question">
    <h2 id="question">${question}</h2><p>${detail}</p>
    <div class="actions">
      <button type="button" autofocus onClick=${() => dialog.current.close()}>Cancel</button>
      <button type="button" class="danger" onClick=${onYes}>${verb}</button>
    </div></dialog>`;
}

/** Links to what a task wrote, which its agent shows; `master` is the address of a master's page, if this is none. */
export function Logs({ task, master = "" }) {
  const executor = task.executor_id || task.id;
  const to = (file) => master + link("logs", task.slave_id, task.framework_id, executor, file);
  return html`<span class="logs">
    <a href=${to("stdout")} aria-label="stdout of ${task.name}">stdout</a>${" "}
    <a href=${to("stderr")} aria-label="stderr of ${task.name}">stderr</a></span>`;
}
