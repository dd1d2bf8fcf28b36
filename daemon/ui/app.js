// The page of a master: which part of it an address shows. Each part is a file of its own.

import { html, render } from "./vendor/preact-htm.js";
import { askLeader, get, usePoll } from "./api.js";
import { Agent, Agents } from "./agents.js";
import { Events } from "./events.js";
import { Framework, Frameworks } from "./frameworks.js";
import { OnAgent } from "./logs.js";
import { Now } from "./now.js";
import { Operate, mayOperate } from "./operate.js";
import { Frame, Waiting, useRoute } from "./parts.js";
import { Rights, may } from "./rights.js";
import { Role, Roles } from "./roles.js";
import { Task, Tasks } from "./tasks.js";

const PAGES = [
  ["", "Now"], ["roles", "Roles"], ["frameworks", "Frameworks"], ["tasks", "Tasks"], ["agents", "Agents"],
  ["events", "Events"], ["operate", "Operate"],
];

/** The part that an address names: its place in the navigation, its title and its content. */
function part({ parts: [page = "", ...ids], query }, metrics, leader) {
  switch (page) {
    case "": return ["", "Now", html`<${Now} metrics=${metrics} leader=${leader} />`];
    case "roles": return ids.length
      ? ["roles", `Role ${ids[0]}`, html`<${Role} key=${ids[0]} name=${ids[0]} metrics=${metrics.value} />`]
      : ["roles", "Roles", html`<${Roles} metrics=${metrics.value} />`];
    case "frameworks": return ids.length
      ? ["frameworks", "Framework", html`<${Framework} key=${ids[0]} id=${ids[0]} />`]
      : ["frameworks", "Frameworks", html`<${Frameworks} />`];
    case "tasks": return ["tasks", "Tasks", html`<${Tasks} query=${query} />`];
    case "task": return ["tasks", "Task", html`<${Task} key=${ids.join("/")} framework=${ids[0]} id=${ids[1]} />`];
    case "agents": return ids.length
      ? ["agents", "Agent", html`<${Agent} key=${ids[0]} id=${ids[0]} />`]
      : ["agents", "Agents", html`<${Agents} query=${query} />`];
    case "logs": return ["tasks", "Logs", html`<${OnAgent} key=${ids.join("/")} place=${ids} />`];
    case "events": return ["events", "Events", html`<${Events} />`];
    case "operate": return ["operate", "Operate", html`<${Operate} query=${query} />`];
    default: return [null, "Unknown page", html`<p>The page ${page} does not exist. Start at <a href="#/">Now</a>.</p>`];
  }
}

function App() {
  const route = useRoute();
  const leader = usePoll(askLeader, []);
  const { value: rights = null, error } = usePoll(() => get("rights"), [], 30);
  const isMeasured = may(rights, "get_endpoints", "/metrics/snapshot");
  const metrics = usePoll(async () => (isMeasured ? get("metrics/snapshot", { frameworks: false }) : null), [isMeasured]);
  const [here, title, content] = part(route, metrics, leader);
  const pages = PAGES.filter(([page]) => page !== "operate" || mayOperate(rights));
  return html`<${Rights.Provider} value=${rights}><${Frame} name="Meseta" title=${title} pages=${pages} here=${here}>
    ${rights ? content : html`<${Waiting} error=${error} />`}<//><//>`;
}

render(html`<${App} />`, document.body);
