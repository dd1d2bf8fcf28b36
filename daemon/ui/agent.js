// The page of an agent: its containers with what they use, and what is in their sandboxes.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { get, url, usePoll } from "./api.js";
import * as format from "./format.js";
import { Machine } from "./machine.js";
import { Bar, Command, Facts, Filter, Frame, Table, Waiting, link, useRoute } from "./parts.js";
import { Plot, push } from "./plot.js";

const PAGES = [["", "Containers"], ["machine", "Machine"]];
const CHUNK = 64 * 1024;
const KEPT_CHARS = 1024 * 1024;
const FOLLOW_MS = 1000;
const NEXT_MS = 250;

/** Behind by more than this, reading goes on near the end: what writes faster than it is read is never caught up with. */
const BEHIND_MAX = 4 * CHUNK;
const PLOTTED_MAX = 600;

function App() {
  const { parts: [page = "", ...ids] } = useRoute();
  const [title, content] = page === "logs"
    ? [ids[2], html`<${Log} key=${ids.join("/")} framework=${ids[0]} executor=${ids[1]} file=${ids[2]} />`]
    : page === "container"
      ? ["Container", html`<${Container} key=${ids[0]} id=${ids[0]} />`]
      : page === "machine"
        ? ["Machine", html`<${Machine} />`]
        : ["Containers", html`<${Containers} />`];
  return html`<${Frame} name="Meseta agent" title=${title} pages=${PAGES} here=${page}>${content}<//>`;
}

/** CPUs in use between two looks at the same container. */
function cpusBetween(before, now) {
  const seconds = (one) => one.cpus_user_time_secs + one.cpus_system_time_secs;
  const span = now.timestamp - before.timestamp;
  return span > 0 ? Math.max(0, (seconds(now) - seconds(before)) / span) : undefined;
}

/** Adds to each container what it used since the last look; `last` keeps the looks. */
function withRates(containers, last) {
  const before = last.current;
  last.current = Object.fromEntries(containers.map((one) => [one.container_id, one.statistics]));
  return containers.map((one) => {
    const earlier = before[one.container_id];
    const cpus = earlier && one.statistics ? cpusBetween(earlier, one.statistics) : undefined;
    return { ...one, cpus };
  });
}

function Containers() {
  const last = useRef({});
  const { value, error } = usePoll(async () => withRates(await get("containers"), last), []);
  const [filter, setFilter] = useState("");
  if (!value) return html`<${Waiting} error=${error} />`;
  const memory = (one) => one.statistics?.mem_total_bytes ?? 0;
  const columns = [
    { label: "Executor", value: (one) => one.executor_id, cell: (one) => html`<a href=${link("container", one.container_id)}>${one.executor_id}</a>` },
    { label: "Logs", cell: (one) => html`<${Files} container=${one} />` },
    { label: "CPUs used", value: (one) => one.cpus ?? 0, cell: (one) => html`<${Use} name="cpus" value=${one.cpus} of=${one.statistics?.cpus_limit || one.statistics?.cpus_soft_limit} />` },
    { label: "Memory used", value: memory, cell: (one) => html`<${Use} name="mem" value=${memory(one) / 1048576} of=${one.statistics?.mem_limit_bytes / 1048576} />` },
    { label: "Processes", number: true, value: (one) => one.statistics?.processes ?? 0, cell: (one) => format.number(one.statistics?.processes) },
    { label: "Framework", value: (one) => one.framework_id, cell: (one) => html`<span title=${one.framework_id}>${format.shortId(one.framework_id)}</span>` },
    { label: "Container", cell: (one) => html`<code>${one.container_id}</code>` },
  ];
  const wanted = filter.toLowerCase();
  const rows = value.filter((one) => `${one.executor_id} ${one.framework_id} ${one.container_id}`.toLowerCase().includes(wanted));
  return html`<${Filter} label="Filter" hint="executor, framework or container" value=${filter} onInput=${setFilter} />
    <${Table} caption="Containers" columns=${columns} rows=${rows} id=${(one) => one.container_id}
      empty=${filter ? "No container matches." : "No container runs on this agent."} sorted=${{ label: "Executor" }} />`;
}

function Use({ name, value, of }) {
  if (value === undefined || Number.isNaN(value)) return html`<span class="quiet">…</span>`;
  return html`<span class="share">${of > 0 && html`<${Bar} name=${name} total=${of} parts=${[["allocated", "used", value]]} />`}
    ${format.amount(name, value)}${of > 0 && ` of ${format.amount(name, of)}`}</span>`;
}

function Files({ container }) {
  const to = (file) => link("logs", container.framework_id, container.executor_id, file);
  return html`<span class="logs"><a href=${to("stdout")}>stdout</a> <a href=${to("stderr")}>stderr</a></span>`;
}

function Container({ id }) {
  const last = useRef({});
  const used = useRef([[], [], []]);
  const { value, error } = usePoll(async () => {
    const all = withRates(await get("containers", { container_id: id }), last);
    const found = all.find((one) => one.container_id === id);
    if (found?.statistics) push(used.current, [found.statistics.timestamp, found.cpus ?? null, found.statistics.cpus_limit || found.statistics.cpus_soft_limit || null], PLOTTED_MAX);
    return { found };
  }, [id], 2);
  if (!value) return html`<${Waiting} error=${error} />`;
  const { found } = value;
  if (!found) return html`<p>No container ${id} runs on this agent.</p>`;
  const statistics = found.statistics ?? {};
  const bytes = (name) => format.bytes(statistics[name]);
  return html`
    <p class="lead">${found.executor_id} <${Files} container=${found} /></p>
    <${Facts} items=${[
      ["CPUs used", format.number(found.cpus)],
      ["CPUs allotted", format.number(statistics.cpus_limit || statistics.cpus_soft_limit)],
      ["Memory used", bytes("mem_total_bytes")],
      ["Memory limit", bytes("mem_limit_bytes")],
      ["Page cache", bytes("mem_cache_bytes")],
      ["Throttled", statistics.cpus_throttled_time_secs === undefined ? "–" : format.span(statistics.cpus_throttled_time_secs)],
      ["Processes", format.number(statistics.processes)],
      ["Threads", format.number(statistics.threads)],
      ["Framework", html`<code>${found.framework_id}</code>`],
      ["Container", html`<code>${found.container_id}</code>`],
    ]} />
    <${Plot} label="CPUs used and allotted since this page was opened" series=${used.current} labels=${["used", "allotted"]} unit=""
      version=${used.current[0].at(-1)} />`;
}

/** The end of a file, and what is written to it from then on. */
function Log({ framework, executor, file }) {
  const sandbox = `/frameworks/${framework}/executors/${executor}/runs/latest`;
  const files = usePoll(() => get("files/browse", { path: sandbox }), [sandbox], 10);
  const [isFollowed, setFollowed] = useState(true);
  const { text, size, begins, isPart, error } = useTail(`${sandbox}/${file}`, isFollowed);
  const box = useRef();
  useEffect(() => {
    if (isFollowed) box.current.scrollTop = box.current.scrollHeight;
  }, [text, isFollowed]);
  const name = (entry) => entry.path.slice(entry.path.lastIndexOf("/") + 1);
  const plain = (files.value ?? []).filter((entry) => !entry.mode.startsWith("d"));
  return html`
    <p class="lead">${executor}</p>
    <div class="bar-of-tools"><nav aria-label="Files of the sandbox">${plain.map((entry) => html`
        <a href=${link("logs", framework, executor, name(entry))} aria-current=${name(entry) === file ? "page" : undefined}>${name(entry)}</a>
        <span class="quiet"> ${format.bytes(entry.size)}</span> `)}</nav>
      <label class="check"><input type="checkbox" checked=${isFollowed} onChange=${(event) => setFollowed(event.target.checked)} /> Follow</label>
      <a href=${url("files/download", { path: `${sandbox}/${file}` })} download>Download</a>
      ${size !== null && html`<span class="quiet">${size.toLocaleString("en")} bytes${begins > 0 ? `, shown from byte ${begins.toLocaleString("en")}` : ""}${isPart ? ", without output that came too fast to show" : ""}</span>`}</div>
    ${error && html`<p class="trouble" role="alert">${error.status === 404 ? `The file ${file} no longer exists in this sandbox.` : error.message}</p>`}
    <pre class="log" tabindex="0" role="log" aria-label="${file} of ${executor}" ref=${box}>${text}</pre>
    ${size === 0 && html`<p class="quiet">The file is empty.</p>`}
    <${Command} text="meseta logs ${format.shellWord(executor)} --file=${format.shellWord(file)} --follow" />`;
}

function useTail(path, isFollowed) {
  const [tail, setTail] = useState({ text: "", size: null, begins: 0, error: null });
  const position = useRef(null);
  useEffect(() => {
    let isOver = false;
    let timer;
    const round = async () => {
      let more = false;
      try {
        if (!document.hidden) more = await advance(path, position, (change) => !isOver && setTail((last) => ({ ...change(last), error: null })));
      } catch (error) {
        if (!isOver) setTail((last) => ({ ...last, error }));
      }
      if (!isOver && (isFollowed || more)) timer = setTimeout(round, more ? NEXT_MS : FOLLOW_MS);
    };
    round();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [path, isFollowed]);
  return tail;
}

const endOf = async (path) => (await get("files/read", { path })).offset;

/** Reads on from `position`, at first near the end; says whether there may be more at once. */
async function advance(path, position, change) {
  const size = await endOf(path);
  const isBehind = position.current !== null && size - position.current > BEHIND_MAX;
  if (position.current === null || size < position.current || isBehind) {
    position.current = Math.max(0, size - CHUNK);
    const begins = position.current;
    change(() => ({ text: "", size, begins, isPart: isBehind }));
  }
  if (size === position.current) {
    change((last) => ({ ...last, size }));
    return false;
  }
  const wanted = Math.min(CHUNK, size - position.current);
  const { data } = await get("files/read", { path, offset: position.current, length: wanted });
  position.current += wanted;
  change((last) => {
    const text = last.text + data;
    const cut = Math.max(0, text.length - KEPT_CHARS);
    const left = new TextEncoder().encode(text.slice(0, cut)).length;
    return { ...last, size, text: text.slice(cut), begins: last.begins + left };
  });
  return position.current < size;
}

render(html`<${App} />`, document.body);
