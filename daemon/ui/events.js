// Events: what the master tells operators as it happens.

import { html } from "./vendor/preact-htm.js";
import { subscribe } from "./api.js";
import * as format from "./format.js";
import { link } from "./parts.js";
import { Stream } from "./stream.js";

/** What of an event is shown: [subject, text, address, state]. */
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
      return [format.hostPort(info.hostname, info.port), format.number(content.agent.total_resources?.length) + " resources", link("agents", id(info.id))];
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
  return html`<${Stream} open=${subscribe} told=${told} />`;
}
