#!/usr/bin/env python3
"""A complete Mesos framework over HTTP and JSON, with Python's standard library only.

    docs/examples/framework.py 127.0.0.1:5050 'echo hello'

Runs one command as a task, acknowledges its updates, reconciles after a lost stream, and exits
with 0 when the task has finished.
"""
import http.client
import json
import sys
import time

ENDED = {"TASK_FINISHED", "TASK_FAILED", "TASK_KILLED", "TASK_LOST", "TASK_ERROR",
         "TASK_DROPPED", "TASK_GONE", "TASK_GONE_BY_OPERATOR", "TASK_UNKNOWN"}
API = "/api/v1/scheduler"
NEEDS = {"cpus": 0.1, "mem": 32}


class Framework:
    def __init__(self, master, command):
        self.master, self.command = master, command
        self.info = {"user": "root", "name": "example", "roles": ["dev"], "failover_timeout": 60,
                     "capabilities": [{"type": "MULTI_ROLE"}, {"type": "PARTITION_AWARE"},
                                      {"type": "RESERVATION_REFINEMENT"}]}
        self.stream_id = None
        self.launched = False

    def post(self, call, headers=()):
        """Sends a call on a separate connection; the event stream has its own connection."""
        connection = http.client.HTTPConnection(self.master, timeout=75)
        all_headers = {"Content-Type": "application/json", "Accept": "application/json"}
        connection.request("POST", API, json.dumps(call), dict(all_headers, **dict(headers)))
        return connection.getresponse()

    def call(self, kind, **body):
        call = {"type": kind, "framework_id": self.info["id"]}
        if body:
            call[kind.lower()] = body
        response = self.post(call, {"Mesos-Stream-Id": self.stream_id})
        if response.status != 202:
            sys.exit("%s: %d %s" % (kind, response.status, response.read().decode()))

    def events(self):
        """Subscribes and yields events until the stream ends."""
        call = {"type": "SUBSCRIBE", "subscribe": {"framework_info": self.info}}
        if "id" in self.info:
            call["framework_id"] = self.info["id"]
        response = self.post(call)
        if response.status != 200:
            sys.exit("SUBSCRIBE: %d %s" % (response.status, response.read().decode()))
        self.stream_id = response.headers["Mesos-Stream-Id"]
        while True:
            # RecordIO: the length of the record in decimal, a line feed, then the record.
            length = response.readline()
            if not length:
                return
            yield json.loads(response.read(int(length)))

    def handle(self, event):
        """Reacts to an event, and returns the state of the task if the task has ended."""
        kind = event["type"]
        if kind == "SUBSCRIBED":
            self.info["id"] = event["subscribed"]["framework_id"]
            if self.launched:
                self.call("RECONCILE", tasks=[{"task_id": {"value": "example"}}])
        elif kind == "OFFERS":
            for offer in event["offers"]["offers"]:
                self.offered(offer)
        elif kind == "UPDATE":
            status = event["update"]["status"]
            print(status["state"], status.get("message", ""), flush=True)
            if "uuid" in status:
                self.call("ACKNOWLEDGE", agent_id=status["agent_id"],
                          task_id=status["task_id"], uuid=status["uuid"])
            if status["state"] in ENDED:
                return status["state"]
        elif kind == "ERROR":
            sys.exit(event["error"]["message"])
        return None

    def offered(self, offer):
        has = {r["name"]: r["scalar"]["value"] for r in offer["resources"] if "scalar" in r}
        if self.launched or any(has.get(name, 0) < amount for name, amount in NEEDS.items()):
            return self.call("DECLINE", offer_ids=[offer["id"]], filters={"refuse_seconds": 60})
        resources = [{"name": name, "type": "SCALAR", "scalar": {"value": amount}}
                     for name, amount in NEEDS.items()]
        task = {"name": "example", "task_id": {"value": "example"}, "agent_id": offer["agent_id"],
                "command": {"value": self.command}, "resources": resources}
        self.launched = True
        self.call("ACCEPT", offer_ids=[offer["id"]],
                  operations=[{"type": "LAUNCH", "launch": {"task_infos": [task]}}])

    def run(self):
        while True:
            try:
                for event in self.events():
                    state = self.handle(event)
                    if state:
                        self.call("TEARDOWN")
                        return state
            except (OSError, http.client.HTTPException) as error:
                print("the stream ended:", error, file=sys.stderr)
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(0 if Framework(sys.argv[1], sys.argv[2]).run() == "TASK_FINISHED" else 1)
