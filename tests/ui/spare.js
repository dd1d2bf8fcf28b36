// A framework that takes oversubscribed CPUs, which no verb does.

const JSON_TYPE = { "Content-Type": "application/json", Accept: "application/json" };

export class Spare {
  constructor(master) {
    this.url = `http://${master}/api/v1/scheduler`;
    this.ending = new AbortController();
  }

  end() {
    this.ending.abort();
  }

  /** Subscribes and runs a task on one revocable CPU; returns when it runs. Updates are acknowledged for as long as there are any. */
  async run() {
    const capabilities = ["MULTI_ROLE", "REVOCABLE_RESOURCES"].map((type) => ({ type }));
    const framework_info = { user: "root", name: "spare", roles: ["spare"], capabilities };
    const body = JSON.stringify({ type: "SUBSCRIBE", subscribe: { framework_info } });
    const answer = await fetch(this.url, { method: "POST", headers: JSON_TYPE, body, signal: this.ending.signal });
    if (!answer.ok) throw new Error(await answer.text());
    this.stream = answer.headers.get("mesos-stream-id");
    const runs = {};
    runs.promise = new Promise((resolve, reject) => Object.assign(runs, { resolve, reject }));
    const late = setTimeout(() => runs.reject(new Error("no revocable CPU is offered, or the task does not run")), 60_000);
    this.read(answer.body, runs).catch((error) => {
      if (!this.ending.signal.aborted) console.error("the framework of revocable tasks:", error);
      runs.reject(error);
    });
    await runs.promise;
    clearTimeout(late);
  }

  async read(stream, runs) {
    let text = "";
    for await (const piece of stream.pipeThrough(new TextDecoderStream())) {
      text += piece;
      for (;;) {
        const [, length] = /^(\d+)\n/.exec(text) ?? [];
        const from = (length?.length ?? 0) + 1;
        if (!length || text.length < from + Number(length)) break;
        await this.take(JSON.parse(text.slice(from, from + Number(length))), runs);
        text = text.slice(from + Number(length));
      }
    }
  }

  async take({ type, subscribed, offers, update }, runs) {
    if (type === "SUBSCRIBED") this.id = subscribed.framework_id;
    for (const offer of offers?.offers ?? []) await this.answer(offer);
    if (update?.status.uuid) {
      const { agent_id, task_id, uuid, state } = update.status;
      await this.call("ACKNOWLEDGE", { agent_id, task_id, uuid });
      if (state === "TASK_RUNNING") runs.resolve();
    }
  }

  async answer(offer) {
    const offer_ids = [offer.id];
    const part = (name, isRevocable, value) => {
      const found = offer.resources.find((one) => one.name === name && Boolean(one.revocable) === isRevocable);
      return found && { ...found, scalar: { value } };
    };
    const resources = [part("cpus", true, 1), part("mem", false, 64)];
    if (this.isLaunched || resources.some((one) => !one)) {
      return this.call("DECLINE", { offer_ids, filters: { refuse_seconds: 1 } });
    }
    this.isLaunched = true;
    const task = { name: "spare", task_id: { value: "spare" }, agent_id: offer.agent_id, resources, command: { shell: true, value: "sleep 100000" } };
    const operations = [{ type: "LAUNCH", launch: { task_infos: [task] } }];
    return this.call("ACCEPT", { offer_ids, operations, filters: { refuse_seconds: 3600 } });
  }

  async call(type, content) {
    const body = JSON.stringify({ framework_id: this.id, type, [type.toLowerCase()]: content });
    const options = { method: "POST", headers: { ...JSON_TYPE, "Mesos-Stream-Id": this.stream }, body };
    // A connection that was kept may just have been closed.
    const answer = await fetch(this.url, options).catch(() => fetch(this.url, options));
    if (!answer.ok) throw new Error(`${type}: ${await answer.text()}`);
  }
}
