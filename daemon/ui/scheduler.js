// The page of the scheduler: its jobs, one of them, and what happens to them.

import { html, render } from "./vendor/preact-htm.js";
import { askLeader, get, lines, usePoll } from "./api.js";
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { Frame, link, useRoute } from "./parts.js";
import { Stream } from "./stream.js";

const PAGES = [["", "Jobs"], ["events", "Events"]];

/** What of an event is shown: [subject, text, address]. */
function told({ job, role, task_id: task, text }) {
  return [job, task ? `${task} ${text}` : text, link("job", role && role !== "*" ? `${role}/${job}` : job)];
}

function Events() {
  const open = (take, signal) => lines("v1/events", (event) => take({ type: event.task_id ? "TASK" : "JOB", ...event }), signal);
  return html`<${Stream} open=${open} told=${told} />`;
}

function App() {
  const { parts: [page = "", name] } = useRoute();
  usePoll(askLeader, []);
  const subscription = usePoll(() => get("v1/subscription"), [], 15).value;
  const [here, title, content] = page === "job"
    ? ["", name, html`<${Job} key=${name} name=${name} subscription=${subscription} />`]
    : page === "events"
      ? [page, "Events", html`<${Events} />`]
      : ["", "Jobs", html`<${Jobs} subscription=${subscription} />`];
  return html`<${Frame} name="Meseta jobs" title=${title} pages=${PAGES} here=${here}>${content}<//>`;
}

render(html`<${App} />`, document.body);
