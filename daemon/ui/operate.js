// Operate: what operators change. Each form shows the same as a command, asks before what ends tasks, and says when
// it is done and not only when the master has taken it.

import { html } from "./vendor/preact-htm.js";
import { call, get, send, usePoll } from "./api.js";
import { listed } from "./agents.js";
import { Form, awaited } from "./form.js";
import * as format from "./format.js";
import { may, useRights } from "./rights.js";

const word = format.shellWord;

async function agentOf(id) {
  return listed(await get("slaves", { slave_id: id })).find((agent) => agent.id === id);
}

const quantities = (scalars) => Object.fromEntries(Object.entries(scalars).map(([name, value]) => [name, { value }]));

const reservation = (role, { principal }) => ({ type: "DYNAMIC", role, ...(principal && { principal }) });

/** By what the role has it reserved, which is taken back as it was made: the reader's own before others'. */
function reservationsOf(agent, role, name, rights) {
  const isMeant = (one) => one.name === name && !one.disk?.persistence && one.reservations.at(-1).type === "DYNAMIC";
  const held = (agent?.reserved_resources_full?.[role] ?? []).filter(isMeant);
  const stacks = [...new Set(held.map((one) => JSON.stringify(one.reservations)))].map(JSON.parse);
  const own = stacks.filter((stack) => (stack.at(-1).principal ?? null) === (rights.principal ?? null));
  const [one = [reservation(role, rights)], ...others] = own.length > 0 ? own : stacks;
  if (others.length > 0) throw new Error(`several principals have reserved ${name} there; choose one: meseta unreserve --reserver=NAME`);
  return one;
}

/** Sends a reservation or takes one back, and waits until the agent has done it. */
async function reserve(type, { agent, role, resources }, rights) {
  const found = await agentOf(agent);
  const before = found?.reserved_resources?.[role] ?? {};
  const asked = Object.entries(format.parseScalars(resources)).map(([name, value]) => ({
    name, type: "SCALAR", scalar: { value },
    reservations: type === "RESERVE_RESOURCES" ? [reservation(role, rights)] : reservationsOf(found, role, name, rights),
  }));
  const [{ name }] = asked;
  await call(type, { [type.toLowerCase()]: { agent_id: { value: agent }, resources: asked } });
  return awaited(async () => {
    const now = (await agentOf(agent))?.reserved_resources?.[role] ?? {};
    return (now[name] ?? 0) !== (before[name] ?? 0) && `Done: ${role} has ${format.resources(now)} on this agent.`;
  }, "Accepted by the master; the agent has not applied it yet.");
}

async function drain({ agent, gone }) {
  await call("DRAIN_AGENT", { drain_agent: { agent_id: { value: agent }, mark_gone: gone === "yes" } });
  return awaited(async () => {
    const found = await agentOf(agent);
    if (gone === "yes" && found?.standing === "gone") return "Done: the agent is gone for good.";
    return found?.drain_info?.state === "DRAINED" ? "Done: the agent is drained." : null;
  }, "Draining: its tasks have not ended yet. The agent's page shows when they have.");
}

async function schedule({ machines, start, hours }) {
  const nanoseconds = (milliseconds) => ({ nanoseconds: Math.round(milliseconds * 1e6) });
  const unavailability = { start: nanoseconds(Date.now() + (Number(start) || 0) * 60_000) };
  if (hours) unavailability.duration = nanoseconds(Number(hours) * 3_600_000);
  await send("POST", "maintenance/windows", { machine_ids: ids(machines), unavailability });
  return "Done: the master asks frameworks to leave these machines.";
}

const names = (text) => text.split(/[\s,]+/).filter(Boolean);
const ids = (text) => names(text).map((hostname) => ({ hostname }));

async function teardown({ framework }) {
  await send("POST", "teardown", new URLSearchParams({ frameworkId: framework }));
  return awaited(async () => {
    const { frameworks } = await get("frameworks", { framework_id: framework });
    return frameworks.length === 0 && "Done: the framework has ended.";
  }, "Accepted by the master; the framework is still listed.");
}

/** The role that is acted on, of those for which the reader may. */
const role = (action) => ({ name: "role", label: "Role", hint: "eng/backend", isNeeded: true, action });
const AGENT = { name: "agent", label: "Agent's id", list: "agents", isNeeded: true };
const RESOURCES = { name: "resources", label: "Resources", hint: "cpus:8;mem:4096", isNeeded: true };
const MACHINES = { name: "machines", label: "Host names", hint: "node1 node2", isNeeded: true };

const onAgent = (verb, type, text, then) => ({
  id: verb, needs: [`${verb}_agents`], title: text, fields: [AGENT], command: ({ agent }) => `meseta ${verb} ${word(agent)}`,
  run: async ({ agent }) => {
    await call(type, { [type.toLowerCase()]: { agent_id: { value: agent } } });
    return then;
  },
});

const FORMS = [
  ["Shares", [
    {
      id: "quota", needs: ["update_quotas"], title: "Set a quota",
      fields: [role("update_quotas"), { name: "guarantee", label: "Guarantee", hint: "cpus:12;mem:6144" }, { name: "limit", label: "Limit", hint: "as the guarantee" },
        { name: "force", label: "Even if the cluster has less", choices: ["no", "yes"] }],
      command: ({ role, guarantee, limit, force }) => `meseta quota set ${word(role)} --guarantee=${word(guarantee)}${limit ? ` --limit=${word(limit)}` : ""}${force === "yes" ? " --force" : ""}`,
      run: async ({ role, guarantee, limit, force }) => {
        if (!guarantee && !limit) throw new Error("Give a guarantee or a limit; the next form removes both.");
        const guarantees = quantities(format.parseScalars(guarantee));
        const limits = limit ? quantities(format.parseScalars(limit)) : guarantees;
        await call("UPDATE_QUOTA", { update_quota: { force: force === "yes", quota_configs: [{ role, guarantees, limits }] } });
        return `Done: the quota of ${role} is set.`;
      },
    },
    {
      id: "unquota", needs: ["update_quotas"], title: "Remove a quota", fields: [role("update_quotas")], command: ({ role }) => `meseta quota remove ${word(role)}`,
      run: async ({ role }) => {
        await send("DELETE", `quota/${role.split("/").map(encodeURIComponent).join("/")}`);
        return `Done: ${role} has no quota.`;
      },
    },
    {
      id: "weight", needs: ["update_weights"], title: "Set a weight", fields: [role("update_weights"), { name: "weight", label: "Weight", hint: "2", isNeeded: true, type: "number" }],
      command: ({ role, weight }) => `meseta weights set ${word(`${role}=${weight}`)}`,
      run: async ({ role, weight }) => {
        await send("PUT", "weights", [{ role, weight: Number(weight) }]);
        return `Done: ${role} has weight ${weight}.`;
      },
    },
    {
      id: "reserve", needs: ["reserve_resources"], title: "Reserve", fields: [AGENT, role("reserve_resources"), RESOURCES],
      command: ({ agent, role, resources }) => `meseta reserve --role=${word(role)} --resources=${word(resources)} ${word(agent)}`,
      run: (values, rights) => reserve("RESERVE_RESOURCES", values, rights),
    },
    {
      id: "unreserve", needs: ["unreserve_resources"], title: "Remove a reservation", fields: [AGENT, role(), RESOURCES],
      command: ({ agent, role, resources }) => `meseta unreserve --role=${word(role)} --resources=${word(resources)} ${word(agent)}`,
      run: (values, rights) => reserve("UNRESERVE_RESOURCES", values, rights),
    },
  ]],
  ["Agents", [
    {
      id: "drain", needs: ["drain_agents"], title: "Drain an agent", fields: [AGENT, { name: "gone", label: "Then gone for good", choices: ["no", "yes"] }],
      command: ({ agent, gone }) => `meseta drain --wait${gone === "yes" ? " --mark_gone" : ""} ${word(agent)}`,
      asks: ({ agent, gone }) => `End the tasks on ${agent}?${gone === "yes" ? " It cannot come back afterwards." : ""}`, verb: "Drain", run: drain,
    },
    onAgent("deactivate", "DEACTIVATE_AGENT", "Deactivate an agent", "Done: the agent gets no new tasks; its tasks continue."),
    onAgent("reactivate", "REACTIVATE_AGENT", "Reactivate an agent", "Done: the agent gets new tasks again."),
  ]],
  ["Maintenance", [
    {
      id: "schedule", needs: ["update_maintenance_schedules"], title: "Add a window",
      fields: [MACHINES, { name: "start", label: "Begins in minutes", hint: "0", type: "number" }, { name: "hours", label: "Lasts hours", hint: "no end", type: "number" }],
      command: ({ machines, start, hours }) => `meseta maintenance schedule${start ? ` --start_in=${start}mins` : ""}${hours ? ` --duration=${hours}hrs` : ""} ${names(machines).map(word).join(" ")}`,
      run: schedule,
    },
    {
      id: "down", needs: ["start_maintenances"], title: "Take machines down", fields: [MACHINES], command: ({ machines }) => `meseta maintenance down ${names(machines).map(word).join(" ")}`,
      asks: ({ machines }) => `End the agents and all tasks on ${names(machines).join(", ")}?`, verb: "Take down",
      run: async ({ machines }) => (await send("POST", "machine/down", ids(machines)), "Done: these machines are down."),
    },
    {
      id: "up", needs: ["stop_maintenances"], title: "Bring machines back up", fields: [MACHINES], command: ({ machines }) => `meseta maintenance up ${names(machines).map(word).join(" ")}`,
      run: async ({ machines }) => (await send("POST", "machine/up", ids(machines)), "Done: these machines are up."),
    },
  ]],
  ["Frameworks", [
    {
      id: "teardown", needs: ["teardown_frameworks"], title: "End a framework", fields: [{ name: "framework", label: "Framework's id", list: "frameworks", isNeeded: true }],
      command: ({ framework }) => `meseta teardown ${word(framework)}`,
      asks: ({ framework }) => `End ${framework} and all its tasks?`, verb: "End it", run: teardown,
    },
  ]],
];

/** Values that a field suggests. */
const SUGGESTED = 200;

const isPermitted = (rights) => (form) => form.needs.every((action) => may(rights, action));

/** Whether there is a form for the reader; with the name of a field, one that has such a field. */
export function mayOperate(rights, field) {
  const forms = FORMS.flatMap(([, all]) => all).filter(isPermitted(rights));
  return forms.some((form) => !field || form.fields.some((one) => one.name === field));
}

export function Operate({ query }) {
  const rights = useRights();
  const { slaves = [] } = usePoll(() => get("slaves", { limit: SUGGESTED }), [], 300).value ?? {};
  const { frameworks = [] } = usePoll(() => get("state-summary", { slaves: false }), [], 300).value ?? {};
  const permitted = FORMS.map(([title, forms]) => [title, forms.filter(isPermitted(rights))]).filter(([, forms]) => forms.length > 0);
  if (permitted.length === 0) return html`<p>${rights.principal ?? "A reader without a name"} has no permission to change anything here.</p>`;
  return html`
    <datalist id="agents">${slaves.map((one) => html`<option value=${one.id}>${format.hostPort(one.hostname, one.port)}</option>`)}</datalist>
    <datalist id="frameworks">${frameworks.slice(0, SUGGESTED).map((one) => html`<option value=${one.id}>${one.name}</option>`)}</datalist>
    ${permitted.map(([title, forms]) => html`<section><h2>${title}</h2><div class="forms">
      ${forms.map((form) => html`<${Form} form=${form} given=${query} />`)}</div></section>`)}`;
}
