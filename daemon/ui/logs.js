// From a task to what it wrote: finds the task's agent and goes on to that agent's own page.
// Agents are other origins, which this page may not ask; their own pages may, with the reader's credentials.

import { html, useEffect } from "./vendor/preact-htm.js";
import { get, usePoll } from "./api.js";
import { agentUrl, listed } from "./agents.js";
import * as format from "./format.js";
import { Command, Waiting, link } from "./parts.js";

/** `place` is the agent, the framework, the executor and the file. */
export function OnAgent({ place: [agentId, framework, executor, file = "stderr"] }) {
  const { value, error } = usePoll(() => get("slaves", { slave_id: agentId }), [agentId]);
  const agent = value && listed(value).find((one) => one.id === agentId);
  const to = agent && agentUrl(agent, link("logs", framework, executor, file));
  useEffect(() => {
    // In place of this address, so that the way back leads to where the reader was.
    if (to) location.replace(to);
  }, [to]);
  if (!value) return html`<${Waiting} error=${error} />`;
  return html`
    ${to
      ? html`<p>Going to <a href=${to}>${file} on ${format.hostPort(agent.hostname, agent.port)}</a>. If this browser cannot reach the agent, run this on a machine that can:</p>`
      : html`<p>Agent ${agentId} is not registered, so its files are unavailable.</p>`}
    <${Command} text="meseta logs ${format.shellWord(executor)} --file=${format.shellWord(file)}" />`;
}
