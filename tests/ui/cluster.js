// A cluster with everything that the page shows: quota, a reservation, a failed task, a drained agent, one who waits.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

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
      await eventually("both agents", async () => (await cluster.get("slaves")).slaves.length === 2);
    } catch (error) {
      await cluster.end();
      throw new Error(`${error.message}\n${cluster.said}`);
    }
    return cluster;
  }

  async end() {
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

  /** Kills the master that listens on this port as a crash would. */
  kill(port) {
    const listens = new RegExp(`:${Number(port).toString(16).toUpperCase().padStart(4, "0")} [0-9A-F]+:0000 0A (?:\\S+ ){5}(\\d+)`);
    const rows = readFileSync("/proc/net/tcp", "utf8").split("\n").map((row) => row.trim().replace(/\s+/g, " "));
    const [, inode] = rows.map((row) => listens.exec(row)).find(Boolean) ?? [];
    const threads = `/proc/${this.process.pid}/task`;
    const children = readdirSync(threads).flatMap((id) => readFileSync(`${threads}/${id}/children`, "utf8").trim().split(" ")).filter(Boolean);
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

  /** Runs a verb to its end. */
  verb(...words) {
    const env = { ...process.env, MESETA_MASTER: this.master };
    return execFileSync(BINARY, words, { env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
  }

  task(name, role, resources, command) {
    return this.verb("execute", "-d", `--name=${name}`, `--role=${role}`, `--resources=${resources}`, `--command=${command}`).trim();
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

/** A master that answers nobody without a secret; `reader` may look at what is filtered, and no more. */
export class ShutMaster extends Cluster {
  static async start() {
    const shut = new ShutMaster();
    shut.dir = mkdtempSync(path.join(tmpdir(), "meseta-ui-"));
    shut.children = [];
    shut.said = "";
    const credentials = execFileSync(BINARY, ["credential", "--principal=reader"], { input: "r\n", encoding: "utf8" });
    const may = (key, object) => ({ [key]: [{ principals: { values: ["reader"] }, [object]: { type: "ANY" } }] });
    const acls = { permissive: false, ...may("get_endpoints", "paths"), ...may("view_roles", "roles"), ...may("view_tasks", "users") };
    writeFileSync(`${shut.dir}/credentials`, credentials, { mode: 0o600 });
    const flags = ["--ip=127.0.0.1", "--port=0", `--work_dir=${shut.dir}/state`, `--credentials=${shut.dir}/credentials`,
      "--authenticate_http_readonly=true", "--authenticate_http_readwrite=true", `--acls=${JSON.stringify(acls)}`];
    shut.process = spawn(BINARY, ["master", ...flags], { stdio: ["ignore", "pipe", "pipe"] });
    for (const stream of [shut.process.stdout, shut.process.stderr]) stream.on("data", (data) => (shut.said += data));
    try {
      shut.master = (await eventually("the address", () => /(127\.0\.0\.1:[1-9]\d*)/.exec(shut.said)))[1];
    } catch (error) {
      await shut.end();
      throw new Error(`${error.message}\n${shut.said}`);
    }
    return shut;
  }
}
