#!/usr/bin/env python3
"""A scheduler on an unmodified mesoshttp, or on avmesos, which grew out of it: tasks to their end.

usage: mesoshttp_scheduler.py HOST:PORT MODULE
Prints one JSON object of what it saw; exits 1 when the tasks did not end in time.
"""
import importlib
import json
import os
import sys
import threading

COUNT = 5
PATIENCE_SECS = 60


class Watcher:
    def __init__(self, master, module):
        client = importlib.import_module(module + ".client").MesosClient
        self.client = client(mesos_urls=["http://" + master], frameworkName=module,
                             frameworkUser="root")
        self.driver = None
        self.wanted = ["http-%d" % i for i in range(COUNT)]
        self.states = {}
        self.ended = threading.Event()
        self.client.on(client.SUBSCRIBED, self.subscribed)
        self.client.on(client.OFFERS, self.offered)
        self.client.on(client.UPDATE, self.updated)

    def subscribed(self, driver):
        self.driver = driver

    def offered(self, offers):
        for offer in offers:
            if not self.wanted:
                offer.decline()
                continue
            names, self.wanted = self.wanted, []
            agent = offer.get_offer()["agent_id"]
            offer.accept([{
                "name": name, "task_id": {"value": name}, "agent_id": agent,
                "command": {"value": "true"},
                "resources": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.1}},
                              {"name": "mem", "type": "SCALAR", "scalar": {"value": 16}}],
            } for name in names])

    def updated(self, update):
        status = update["status"]
        if status.get("reason") == "REASON_RECONCILIATION":
            return
        self.states[status["task_id"]["value"]] = status["state"]
        if list(self.states.values()).count("TASK_FINISHED") == COUNT:
            self.ended.set()

    def nudge(self):
        """Its callbacks lag one record: an answer about no task brings the one before."""
        while not self.ended.wait(0.1):
            if self.driver:
                self.driver.reconcile([{"task_id": {"value": "no-such-task"}}])


def main(master, module):
    watcher = Watcher(master, module)
    for target in (watcher.client.register, watcher.nudge):
        threading.Thread(target=target, daemon=True).start()
    if not watcher.ended.wait(PATIENCE_SECS):
        sys.exit("not in time: %s" % watcher.states)
    watcher.driver.tearDown()
    print(json.dumps(watcher.states), flush=True)
    # Its threads wait for a stream that is over.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
