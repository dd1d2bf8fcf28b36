// A cluster with everything that the page shows: quota, a reservation, a failed task, a drained agent, one who waits.

import { execFileSync, spawn } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";

import { Spare } from "./spare.js";

const ROOT = path.resolve(import.meta.dirname, "../..");
const BINARY = path.resolve(process.env.MESETA ?? path.join(ROOT, "target/debug/meseta"));

export const FAILING = "<img src=x onerror=alert(1)>";
export const LAST_LINE = "fatal: no such table: users";

export async function eventually(what, check, seconds = 30) {
  const until = Date.now() + seconds * 1000;
  let last;
  while (Date.now() < until) {
    try {
      const found = await check();
      if (found) return found;
      last = found;
    } catch (error) {
      last = error.message;
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  throw new Error(`not within ${seconds} s: ${what} (at last: ${last})`);
}

/** 14 CPUs are oversubscribed, whatever is used. */
const FIXED = { libraries: { file: "libfixed_resource_estimator.so", modules: { name: "org_apache_mesos_FixedResourceEstimator",
  parameters: { key: "resources", value: "cpus:14" } } } };

export class Cluster {
  static async start(masters = 1) {
    const cluster = new Cluster();
    cluster.dir = mkdtempSync(path.join(tmpdir(), "meseta-ui-"));
    const flags = [`--masters=${masters}`, "--port=0", "--agent_port=0", "--agents=2", `--work_dir=${cluster.dir}/state`,
      "--resources=cpus:4;mem:2048;disk:4096", "--attributes=rack:r1;ssd:true"];
    cluster.process = spawn(BINARY, ["local", ...flags], { stdio: ["ignore", "pipe", "pipe"] });
    cluster.children = [];
    cluster.said = "";
    for (const stream of [cluster.process.stdout, cluster.process.stderr]) {
      stream.on("data", (data) => (cluster.said += data));
    }
    try {
      const found = await eventually("the master's address", () => /http:\/\/(127\.0\.0\.1:\d+)\/state/.exec(cluster.said));
      cluster.master = found[1];
      cluster.scheduler = (await eventually("the scheduler's address", () => /jobs +http:\/\/(127\.0\.0\.1:\d+)/.exec(cluster.said)))[1];
      await eventually("both agents", async () => (await cluster.get("slaves")).slaves.length === 2);
    } catch (error) {
      await cluster.end();
      throw new Error(`${error.message}\n${cluster.said}`);
    }
    return cluster;
  }

  async end() {
    this.spare?.end();
    for (const child of [...this.children, this.process]) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGTERM");
      const late = setTimeout(() => child.kill("SIGKILL"), 20_000);
      await ended;
      clearTimeout(late);
    }
    rmSync(this.dir, { recursive: true, force: true });
  }

  /** The processes that it started. */
  processes() {
    const threads = `/proc/${this.process.pid}/task`;
    return readdirSync(threads).flatMap((id) => readFileSync(`${threads}/${id}/children`, "utf8").trim().split(" ")).filter(Boolean);
  }

  /** Where its masters find their etcd. */
  etcd() {
    const flags = this.processes().map((id) => readFileSync(`/proc/${id}/cmdline`, "utf8"));
    return flags.map((all) => /--etcd_endpoints=([^\0]+)/.exec(all)?.[1]).find(Boolean);
  }

  /** Kills the master that listens on this port as a crash would. */
  kill(port) {
    const listens = new RegExp(`:${Number(port).toString(16).toUpperCase().padStart(4, "0")} [0-9A-F]+:0000 0A (?:\\S+ ){5}(\\d+)`);
    const rows = readFileSync("/proc/net/tcp", "utf8").split("\n").map((row) => row.trim().replace(/\s+/g, " "));
    const [, inode] = rows.map((row) => listens.exec(row)).find(Boolean) ?? [];
    const children = this.processes();
    const holds = (id) => readdirSync(`/proc/${id}/fd`).some((fd) => {
      try {
        return readlinkSync(`/proc/${id}/fd/${fd}`) === `socket:[${inode}]`;
      } catch {
        return false;
      }
    });
    const master = children.find(holds);
    if (!inode || !master) throw new Error(`none of ${children} listens on port ${port}`);
    process.kill(Number(master), "SIGKILL");
  }

  async get(at) {
    return (await fetch(`http://${this.master}/${at}`)).json();
  }

  /** What the scheduler answers. */
  async jobs(at) {
    return (await fetch(`http://${this.scheduler}/v1/${at}`)).json();
  }

  async submit(job) {
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(job) };
    const answer = await fetch(`http://${this.scheduler}/v1/jobs`, options);
    if (!answer.ok) throw new Error(await answer.text());
  }

  /** Runs a verb to its end. */
  verb(...words) {
    const env = { ...process.env, MESETA_MASTER: this.master, ...this.env };
    return execFileSync(BINARY, words, { env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
  }

  task(name, role, resources, command, more = []) {
    return this.verb("execute", "-d", `--name=${name}`, `--role=${role}`, `--resources=${resources}`, `--command=${command}`, ...more).trim();
  }

  /** A daemon of its own, whose output is kept. */
  daemon(verb, flags) {
    const daemon = spawn(BINARY, [verb, ...flags], { stdio: ["ignore", "pipe", "pipe"] });
    for (const stream of [daemon.stdout, daemon.stderr]) stream.on("data", (data) => (this.said += data));
    return daemon;
  }

  agent(name, flags) {
    const dir = `${this.dir}/${name}`;
    return this.daemon("agent", [`--master=${this.master}`, "--ip=127.0.0.1", "--port=0", `--work_dir=${dir}`, `--runtime_dir=${dir}/run`,
      "--shutdown_tasks_on_exit", ...flags]);
  }

  /** What a master that answers says of who leads. */
  async leads() {
    return leading([...this.said.matchAll(/127\.0\.0\.1:\d+/g)].map(([address]) => address));
  }

  async fill() {
    const [first, second] = (await this.get("slaves")).slaves.map((agent) => agent.id);
    this.agents = [first, second];
    this.verb("quota", "set", "eng", "--guarantee=cpus:1;mem:256", "--limit=cpus:3;mem:1024");
    this.verb("quota", "set", "eng/backend", "--guarantee=cpus:1;mem:256", "--limit=cpus:2;mem:512");
    this.verb("weights", "set", "eng=2");
    this.verb("reserve", "--role=ads", "--resources=cpus:1;mem:256", first);
    this.task("web", "eng", "cpus:0.5;mem:64", "i=0; while true; do i=$((i+1)); echo GET /page/$i 200; sleep 0.2; done");
    this.task("batch", "ads", "cpus:0.5;mem:128", "while true; do i=$((i+1)); done");
    const failing = `echo starting; echo reading config >&2; echo '${LAST_LINE}' >&2; exit 3`;
    try {
      this.verb("execute", `--name=${FAILING}`, "--role=eng", "--resources=cpus:0.1;mem:32", `--command=${failing}`);
      throw new Error("the failing task did not fail");
    } catch (error) {
      if (error.status !== 3) throw error;
    }
    this.verb("drain", second);
    this.task("api", "eng/backend", "cpus:1;mem:128", "sleep 100000");
    this.children.push(this.agent("agent-3", ["--resources=cpus:2;mem:1024;disk:1024", "--attributes=rack:r2", "--oversubscribed_resources_interval=1secs",
      "--resource_estimator=org_apache_mesos_FixedResourceEstimator", `--modules=${JSON.stringify(FIXED)}`]));
    const third = (agent) => !this.agents.includes(agent.id);
    this.agents.push((await eventually("the third agent", async () => (await this.get("slaves")).slaves.find(third))).id);
    this.spare = new Spare(this.master);
    await this.spare.run();
    const env = { ...process.env, MESETA_MASTER: this.master };
    const waiting = ["execute", "--name=train", "--role=eng", "--resources=cpus:100;mem:64", "--command=true"];
    this.children.push(spawn(BINARY, waiting, { env, stdio: "ignore" }));
    await eventually("everything is there", async () => {
      const { tasks } = await this.get("tasks");
      const states = tasks.map((task) => task.state);
      const waiting = (await this.get("state-summary")).frameworks.some((one) => one.name.includes("train"));
      return waiting && states.includes("TASK_FAILED") && tasks.some((task) => task.name === "api" && task.state === "TASK_RUNNING");
    });
  }
}

/** What the daemon that leads answers, of those at these addresses. */
async function leading(addresses) {
  // The others name one that was killed until its lease is over: the leader has to say it of itself.
  for (const address of addresses) {
    const answer = await fetch(`http://${address}/leader`).then((found) => found.json()).catch(() => null);
    if (answer?.role === "leading" && answer.leader === address) return answer;
  }
  throw new Error("nobody says that it leads");
}

/** Two schedulers that share the etcd of a cluster's masters. */
export class Schedulers {
  static async start(cluster) {
    const schedulers = new Schedulers();
    const { leader } = await cluster.leads();
    schedulers.all = new Map();
    for (const name of ["one", "two"]) {
      const port = await freePort();
      const flags = [`--master=${leader}`, "--ip=127.0.0.1", `--port=${port}`, "--store=etcd", `--etcd_endpoints=${cluster.etcd()}`,
        "--etcd_lease_ttl=4secs", `--work_dir=${cluster.dir}/scheduler-${name}`];
      const daemon = cluster.daemon("scheduler", flags);
      cluster.children.push(daemon);
      schedulers.all.set(`127.0.0.1:${port}`, daemon);
    }
    await eventually("both schedulers", async () => (await schedulers.leads()).schedulers.length === 2, 60);
    return schedulers;
  }

  async leads() {
    return leading(this.all.keys());
  }

  /** As a crash would. */
  kill(address) {
    this.all.get(address).kill("SIGKILL");
  }
}

async function freePort() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Lists of ACLs and what these call their objects, as the reference has them. */
const ACTIONS = [...readFileSync(path.join(ROOT, "docs/acls.md"), "utf8").matchAll(/^\| `(\w+)` \| `(\w+)`/gm)].map(([, list, objects]) => [list, objects]);

/** Who may do what, and to which objects; the operator everything, and so may agents and frameworks, which show no secret. */
const PERMITTED = {
  reader: { view_roles: ["eng"], view_frameworks: ["daemon"], view_tasks: ["daemon"] },
  lead: { update_weights: ["eng"], view_roles: ["eng"] },
};

function acls() {
  const entry = (principals, name, objects) => ({ principals, [name]: objects });
  const lists = ACTIONS.map(([list, name]) => {
    const few = Object.entries(PERMITTED).flatMap(([principal, lists]) => {
      const own = lists[list] ? [entry({ values: [principal] }, name, { values: lists[list] })] : [];
      return [...own, entry({ values: [principal] }, name, { type: "NONE" })];
    });
    return [list, [...few, entry({ type: "ANY" }, name, { type: "ANY" })]];
  });
  return Object.fromEntries(lists);
}

/** A master that answers nobody without a secret, and an agent; each principal's secret is its name. */
export class ShutCluster extends Cluster {
  static async start() {
    const shut = new ShutCluster();
    shut.dir = mkdtempSync(path.join(tmpdir(), "meseta-ui-"));
    // Tasks of other users go to their sandboxes through it.
    chmodSync(shut.dir, 0o711);
    shut.children = [];
    shut.said = "";
    const principals = [...Object.keys(PERMITTED), "operator"];
    const credentials = principals.map((name) =>
      execFileSync(BINARY, ["credential", `--principal=${name}`], { input: `${name}\n`, encoding: "utf8" }).trimEnd());
    writeFileSync(`${shut.dir}/credentials`, `${credentials.join("\n")}\n`, { mode: 0o600 });
    writeFileSync(`${shut.dir}/secret`, "operator", { mode: 0o600 });
    const flags = ["--ip=127.0.0.1", "--port=0", `--work_dir=${shut.dir}/state`, `--credentials=${shut.dir}/credentials`,
      "--authenticate_http_readonly=true", "--authenticate_http_readwrite=true", `--acls=${JSON.stringify(acls())}`];
    shut.process = shut.daemon("master", flags);
    shut.env = { MESETA_PRINCIPAL: "operator", MESETA_SECRET_FILE: `${shut.dir}/secret` };
    try {
      shut.master = (await eventually("the address", () => /(127\.0\.0\.1:[1-9]\d*)/.exec(shut.said)))[1];
    } catch (error) {
      await shut.end();
      throw new Error(`${error.message}\n${shut.said}`);
    }
    return shut;
  }

  async get(at) {
    const authorization = `Basic ${btoa("operator:operator")}`;
    return (await fetch(`http://${this.master}/${at}`, { headers: { authorization } })).json();
  }

  /** An agent, and a task of each of two users, in roles of their own. */
  async fill() {
    this.children.push(this.agent("agent", ["--resources=cpus:4;mem:2048;disk:4096"]));
    await eventually("the agent", async () => (await this.get("slaves")).slaves.length === 1);
    this.task("mine", "eng", "cpus:0.5;mem:64", "sleep 100000", ["--user=daemon"]);
    this.task("theirs", "ads", "cpus:0.5;mem:64", "sleep 100000");
    await eventually("both tasks", async () => (await this.get("tasks")).tasks.filter((task) => task.state === "TASK_RUNNING").length === 2);
  }
}
