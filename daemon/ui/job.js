// One job: its instances, what failed last, its versions, and what its reader may do to it.

import { html, useRef } from "./vendor/preact-htm.js";
import { changed, get, send, usePoll } from "./api.js";
import { Form, awaited } from "./form.js";
import * as format from "./format.js";
import { Command, Facts, Logs, Pages, State, Table, Waiting, link } from "./parts.js";

const word = format.shellWord;

/** Instances of a job that are shown at a time. */
const PAGE = 1000;

/** An end that somebody has to look at. */
const FAULT = /^(failed|lost|killed: its run took too long)/;

export function Job({ name, subscription }) {
  const at = `v1/jobs/${encodeURIComponent(name)}`;
  const offset = useRef(0);
  const { value: job, error } = usePoll(async () => {
    const from = offset.current;
    return { ...(await get(at, { limit: PAGE, offset: from })), from };
  }, [at]);
  const turn = (to) => {
    offset.current = to;
    changed();
  };
  const history = usePoll(() => get(`${at}/history`), [at]).value;
  if (error?.status === 404) return html`<p>Job ${name} does not exist. <a href="#/">All jobs</a></p>`;
  if (!job) return html`<${Waiting} error=${error} />`;
  const events = (history?.events ?? []).map((event, at) => ({ ...event, at })).reverse();
  const faults = events.filter((event) => event.task_id && FAULT.test(event.text));
  return html`
    <p class="lead"><${State} name=${job.state} /> ${job.why}</p>
    <${Facts} items=${[
      ["Kind", job.kind],
      ["Role", job.role],
      ["Version", job.version],
      ["Wanted", format.number(job.count)],
      ["Running", format.number(job.running)],
      job.kind === "service" ? ["Healthy", format.number(job.healthy)] : ["Succeeded", format.number(job.succeeded)],
      ["Pending", format.number(job.pending)],
      ["Failed", format.number(job.failed)],
      job.last_failure && ["Last failure", failureText(job.last_failure)],
      job.update && ["Update", `${job.update.from} to ${job.update.to}: ${job.update.state}`],
    ]} />
    ${job.obstacles?.length > 0 && html`<section><h2>Obstacles</h2><ul class="why">${job.obstacles.map((one) => html`<li>${one}</li>`)}</ul></section>`}
    ${faults.length > 0 && html`<section><h2>Last failures</h2>
      <${Events} caption="Last failures" events=${faults} subscription=${subscription} /></section>`}
    <section><h2>Instances</h2><${Pages} of="instances" from=${job.from} size=${PAGE} shown=${job.tasks.length} total=${job.tasks_total} turn=${turn} />
      <${Instances} tasks=${job.tasks} subscription=${subscription} /></section>
    ${volumesOf(job).length > 0 && html`<section><h2>Volumes</h2><${Volumes} volumes=${volumesOf(job)} subscription=${subscription} /></section>`}
    ${history && html`<section><h2>Versions</h2><${Versions} versions=${history.versions} /></section>`}
    ${history && job.actions.length > 0 && html`<section><h2>Change it</h2><${Changes} at=${at} job=${{ ...job, full: name }} history=${history} /></section>`}
    <section><h2>What happened</h2><${Events} caption="What happened" events=${events} subscription=${subscription} /></section>
    <section><h2>On the command line</h2>
      <${Command} text="meseta job status ${word(name)}" />
      <${Command} text="meseta job logs ${word(name)} --file=stderr --follow" /></section>`;
}

/** The task that failed last, how, how often any did, and when the next attempt is. */
function failureText(failure) {
  const count = failure.failures === 1 ? "1 failure" : `${format.number(failure.failures)} failures`;
  const next = failure.next_attempt ? `; next attempt at ${format.time(failure.next_attempt)}` : "";
  return `${failure.task_id}: ${failure.text}; ${count}${next}`;
}

/** Links to what a task wrote, by way of the master, which knows the address of its agent. */
function LogsOf({ id, agent, subscription }) {
  if (!agent || !subscription?.master) return null;
  const task = { id, name: id, slave_id: agent, framework_id: subscription.framework_id };
  return html`<${Logs} task=${task} master=${`${subscription.master}/`} />`;
}

/** The agent of a task or of a volume, on the master's page. */
function Host({ of, subscription }) {
  if (!subscription?.master) return of.hostname;
  return html`<a href="${subscription.master}/${link("agents", of.agent_id)}">${of.hostname}</a>`;
}

function Volumes({ volumes, subscription }) {
  const columns = [
    { label: "Index", number: true, value: (volume) => volume.index, cell: (volume) => volume.index },
    { label: "Volume", value: (volume) => volume.volume_id, cell: (volume) => html`<code>${volume.volume_id}</code>` },
    { label: "State", value: (volume) => volume.state, cell: (volume) => volume.state },
    { label: "Size", number: true, value: (volume) => volume.size_mb, cell: (volume) => format.amount("disk", volume.size_mb) },
    { label: "Path", value: (volume) => volume.path, cell: (volume) => html`<code>${volume.path}</code>` },
    { label: "Agent", value: (volume) => volume.hostname, cell: (volume) => html`<${Host} of=${volume} subscription=${subscription} />` },
  ];
  return html`<${Table} caption="Volumes" columns=${columns} rows=${volumes} id=${(volume) => volume.volume_id} />`;
}

function Instances({ tasks, subscription }) {
  const host = (task) => html`<${Host} of=${task} subscription=${subscription} />`;
  const ports = (task) => Object.entries(task.ports).map(([name, port]) => `${name}:${port}`).join(" ");
  const columns = [
    { label: "Task", value: (task) => task.task_id, cell: (task) => html`<code>${task.task_id}</code>` },
    { label: "State", value: (task) => task.state, cell: (task) => html`<${State} name=${task.state} />${task.healthy && html` <span class="quiet">healthy</span>`}` },
    { label: "Logs", cell: (task) => html`<${LogsOf} id=${task.task_id} agent=${task.agent_id} subscription=${subscription} />` },
    { label: "Index", number: true, value: (task) => task.index, cell: (task) => task.index },
    { label: "Attempt", number: true, value: (task) => task.attempt, cell: (task) => task.attempt },
    { label: "Version", number: true, value: (task) => task.version, cell: (task) => task.version },
    { label: "Agent", value: (task) => task.hostname, cell: host },
    { label: "Ports", cell: ports },
    { label: "Since", value: (task) => task.since, cell: (task) => html`<time title=${format.time(task.since)}>${format.ago(task.since)}</time>` },
    { label: "Message", kind: "text", cell: (task) => task.message },
  ];
  return html`<${Table} caption="Instances" columns=${columns} rows=${tasks} id=${(task) => task.task_id} empty="The job has no tasks." />`;
}

function Events({ caption, events, subscription }) {
  const columns = [
    { label: "Time", cell: (event) => html`<time>${format.time(event.time)}</time>` },
    { label: "Task", cell: (event) => event.task_id && html`<code>${event.task_id}</code>` },
    { label: "Logs", cell: (event) => html`<${LogsOf} id=${event.task_id} agent=${event.agent_id} subscription=${subscription} />` },
    { label: "What", kind: "text", cell: (event) => event.text },
  ];
  return html`<${Table} caption=${caption} columns=${columns} rows=${events} id=${(event) => event.at} empty="No events since the start of the scheduler." />`;
}

function Versions({ versions }) {
  const standing = (version) => [version.current && "current", version.stable && "was healthy"].filter(Boolean).join(", ");
  const columns = [
    { label: "Version", value: (one) => one.version, cell: (one) => one.version },
    { label: "State", cell: standing },
    { label: "Instances", number: true, cell: (one) => format.number(one.count) },
    { label: "Submitted", cell: (one) => html`<time>${format.time(one.time)}</time>` },
  ];
  return html`<${Table} caption="Versions" columns=${columns} rows=${versions} id=${(one) => one.version} sorted=${{ label: "Version", down: true }} />`;
}

/** Waits until the job is where a change leads; `is` looks at it, without its tasks: there may be very many. */
function until(at, is, done) {
  const isDone = async () => is(await get(at, { tasks: false })) && done;
  return awaited(isDone, "Accepted by the scheduler; the page above shows the progress.");
}

/** A job that runs its present version, all of it, or has ended with it. */
const isSettled = (job) => !job.update && (job.kind === "cron" || ["healthy", "complete", "running"].includes(job.state));

async function stop(at, { purge }) {
  await send("POST", `${at}/stop`, { purge: purge === "yes" });
  return until(at, (job) => job.state === "stopped", "Done: all its tasks have ended.").catch((error) => {
    if (error.status === 404) return "Done: the job is forgotten.";
    throw error;
  });
}

/** The volumes of a job; most have none. */
const volumesOf = (job) => job.volumes ?? [];

/** The id of an instance's volume, if it has one. */
function idOf(job, index) {
  return volumesOf(job).find((volume) => volume.index === Number(index))?.volume_id;
}

/** The changes that the job's state admits, of those that its reader may make. */
function changes(at, job, history, withVolumes) {
  const name = word(job.full);
  const earlier = history.versions.filter((one) => !one.current).map((one) => String(one.version)).reverse();
  const lost = `The job and its versions are forgotten${volumesOf(job).length > 0 ? ", and its volumes are destroyed with their data" : ""}.`;
  const change = (action, body) => send("POST", `${at}/${action}`, body);
  return [
    job.update?.state === "canary" && {
      id: "promote", title: "Promote the canaries", fields: [], command: () => `meseta job promote ${name}`,
      run: async () => {
        await change("promote", {});
        return until(at, isSettled, "Done: all instances are of the new version.");
      },
    },
    job.kind === "service" && job.state !== "stopped" && {
      id: "scale", title: "Scale", fields: [{ name: "count", label: "Instances", type: "number", isNeeded: true }],
      command: ({ count }) => `meseta job scale ${name} ${word(count)}`,
      asks: ({ count }) => (Number(count) < job.count ? `End ${job.count - Number(count)} of ${job.count} instances of ${job.name}?` : `Run ${count} instances of ${job.name} in place of ${job.count}?`),
      verb: "Scale",
      run: async ({ count }) => {
        await change("scale", { count: Number(count) });
        return until(at, (now) => now.running === Number(count) && isSettled(now), `Done: ${count} run.`);
      },
    },
    {
      id: "restart", title: "Restart", fields: [], command: () => `meseta job restart ${name}`,
      asks: () => `Replace each task of ${job.name} by a new one?`, verb: "Restart",
      run: async () => {
        await change("restart", {});
        return until(at, (now) => now.version > job.version && isSettled(now), "Done: all tasks are new.");
      },
    },
    earlier.length > 0 && {
      id: "revert", title: "Go back to a version", fields: [{ name: "version", label: "Version", choices: earlier }],
      command: ({ version }) => `meseta job revert ${name} ${version}`,
      asks: ({ version }) => `Replace each task of ${job.name} by one of version ${version}?`, verb: "Go back",
      run: async ({ version }) => {
        await change("revert", { version: Number(version) });
        return until(at, (now) => now.version === Number(version) && isSettled(now), `Done: version ${version} runs.`);
      },
    },
    job.state !== "stopped" && job.state !== "stopping" && !job.update && {
      id: "rebalance", title: "Rebalance", fields: [], command: () => `meseta job rebalance ${name}`,
      asks: () => `Move instances of ${job.name} until they are spread as evenly as the agents allow?`, verb: "Rebalance",
      run: async () => {
        await change("rebalance", {});
        const { events } = await get(`${at}/history`);
        const last = events.filter((event) => event.text.startsWith("to be rebalanced: ")).pop();
        return last ? `Accepted: ${last.text.slice("to be rebalanced: ".length)}.` : "Accepted by the scheduler.";
      },
    },
    withVolumes.length > 0 && {
      id: "release", title: "Destroy a volume",
      fields: [{ name: "index", label: "Index", choices: withVolumes }],
      command: ({ index }) => `meseta job release ${name} ${index}`,
      asks: ({ index }) => `Destroy the volume of instance ${index} of ${job.name}, with its data? The instance starts again with an empty volume.`,
      verb: "Destroy",
      run: async ({ index }) => {
        const id = idOf(job, index);
        await change("release", { index: Number(index), volume_id: id });
        return until(at, (now) => idOf(now, index) !== id, "Done: the instance no longer has the volume.");
      },
    },
    {
      id: "stop", title: "Stop", fields: [{ name: "purge", label: "And forget the job", choices: ["no", "yes"] }],
      command: ({ purge }) => `meseta job stop ${name}${purge === "yes" ? " --purge" : ""}`,
      asks: ({ purge }) => `End all tasks of ${job.name}?${purge === "yes" ? ` ${lost}` : ""}`, verb: "Stop",
      run: (values) => stop(at, values),
    },
  ].filter((form) => form && job.actions.includes(form.id));
}

function Changes({ at, job, history }) {
  // Between two volumes an instance has none, and the form that waits for that stays.
  const withVolumes = useRef([]);
  const now = volumesOf(job).map((volume) => String(volume.index));
  if (now.length > 0) withVolumes.current = now;
  return html`<div class="forms">${changes(at, job, history, withVolumes.current).map((form) => html`<${Form} key=${form.id} form=${form} given=${{ count: String(job.count) }} />`)}</div>`;
}
