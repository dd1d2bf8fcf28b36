#!/usr/bin/env python3
"""A scheduler on an unmodified pymesos: 20 tasks, kills, declines, suppress, revive, reconcile, failover.

usage: pymesos_scheduler.py HOST:PORT
Prints one JSON object of what it saw; exits 1, saying why, when something did not come in time.
"""
import json
import sys
import threading

from addict import Dict
from pymesos import MesosSchedulerDriver, Scheduler

SHORT, LONG = 15, 5
CPUS, MEM_MB = 0.1, 16
PATIENCE_SECS = 60
ENDED = {"TASK_FINISHED", "TASK_FAILED", "TASK_KILLED", "TASK_LOST", "TASK_ERROR"}


class Watcher(Scheduler):
    """Launches what is wanted, declines the rest, and remembers everything it is told."""

    def __init__(self, wanted):
        self.wanted = list(wanted)
        self.changed = threading.Condition()
        self.subscribed = []
        self.states = {}
        self.reconciled = {}
        self.offers = 0
        self.declined = 0
        self.errors = []

    def registered(self, driver, framework_id, master_info):
        with self.changed:
            self.subscribed.append((framework_id.value, master_info.port))
            self.changed.notify_all()

    def reregistered(self, driver, master_info):
        self.registered(driver, Dict(value=driver.framework_id), master_info)

    def resourceOffers(self, driver, offers):
        for offer in offers:
            tasks = []
            with self.changed:
                self.offers += 1
                # Half of what is left for each offer, so that it takes several.
                count = (len(self.wanted) + 1) // 2 if len(self.wanted) > 4 else len(self.wanted)
                for _ in range(min(count, self.places(offer))):
                    name, command = self.wanted.pop(0)
                    tasks.append(self.task(offer, name, command))
                self.changed.notify_all()
            if tasks:
                driver.launchTasks(offer.id, tasks, {"refuse_seconds": 0.1})
            else:
                driver.declineOffer(offer.id, {"refuse_seconds": 0.1})
                with self.changed:
                    self.declined += 1
                    self.changed.notify_all()

    @staticmethod
    def places(offer):
        """The number of tasks for which this offer has enough CPUs and memory."""
        have = {r.name: r.scalar.value for r in offer.resources if r.type == "SCALAR"}
        # Less than a thousandth is a sum of fractions.
        return int(min((have.get("cpus", 0) + 1e-4) / CPUS, have.get("mem", 0) / MEM_MB))

    @staticmethod
    def task(offer, name, command):
        task = Dict()
        task.task_id.value = name
        task.name = name
        task.agent_id.value = offer.agent_id.value
        task.command.value = command
        task.resources = [
            dict(name="cpus", type="SCALAR", scalar={"value": CPUS}),
            dict(name="mem", type="SCALAR", scalar={"value": MEM_MB}),
        ]
        return task

    def statusUpdate(self, driver, update):
        with self.changed:
            if update.get("reason") == "REASON_RECONCILIATION":
                self.reconciled[update.task_id.value] = update.state
                assert "uuid" not in update, "a reconciliation wants no acknowledgement"
            else:
                self.states[update.task_id.value] = update.state
            self.changed.notify_all()

    def error(self, driver, message):
        with self.changed:
            self.errors.append(message)
            self.changed.notify_all()

    def wait(self, what, condition):
        with self.changed:
            if not self.changed.wait_for(condition, PATIENCE_SECS):
                sys.exit("not in time: %s; states %s, reconciled %s, errors %s"
                         % (what, self.states, self.reconciled, self.errors))

    def count(self, state):
        return sum(1 for s in self.states.values() if s == state)


def framework():
    info = Dict()
    info.user = "root"
    info.name = "pymesos"
    info.role = "dev"
    info.failover_timeout = 60
    return info


def start(watcher, master, framework_id=None):
    info = framework()
    if framework_id:
        info.id.value = framework_id
    driver = MesosSchedulerDriver(watcher, info, master, use_addict=True)
    driver.start()
    watcher.wait("SUBSCRIBED", lambda: watcher.subscribed)
    return driver


def main(master):
    tasks = [("short-%d" % i, "true") for i in range(SHORT)]
    tasks += [("long-%d" % i, "exec sleep 600") for i in range(LONG)]
    first = Watcher(tasks)
    driver = start(first, master)
    framework_id = first.subscribed[0][0]
    first.wait("15 tasks finished and 5 running",
               lambda: first.count("TASK_FINISHED") == SHORT and first.count("TASK_RUNNING") == LONG)
    first.wait("an offer declined", lambda: first.declined > 0)

    driver.killTask(dict(value="long-0"))
    driver.killTask(dict(value="long-1"))
    first.wait("two tasks killed", lambda: first.count("TASK_KILLED") == 2)

    # What is asked next is answered after the suppression took effect: no offer comes any more.
    driver.suppressOffers()
    driver.reconcileTasks([])
    first.wait("implicit reconciliation", lambda: len(first.reconciled) == LONG - 2)
    implicit = dict(first.reconciled)
    suppressed_at = first.offers
    first.reconciled.clear()
    driver.reconcileTasks([dict(task_id=dict(value="long-2")), dict(task_id=dict(value="short-0"))])
    first.wait("explicit reconciliation", lambda: len(first.reconciled) == 2)
    explicit = dict(first.reconciled)
    silent = first.offers == suppressed_at
    driver.reviveOffers()
    first.wait("an offer after REVIVE", lambda: first.offers > suppressed_at)

    # The scheduler goes away without a TEARDOWN; another one takes its place and its tasks.
    driver.stop(failover=True)
    driver.join()
    second = Watcher([])
    driver = start(second, master, framework_id)
    driver.reconcileTasks([])
    second.wait("the tasks of before", lambda: len(second.reconciled) == LONG - 2)
    after = dict(second.reconciled)
    for name in after:
        driver.killTask(dict(value=name))
    second.wait("all killed", lambda: second.count("TASK_KILLED") == LONG - 2)
    second.wait("offers go on", lambda: second.offers > 0)
    driver.stop()
    driver.join()
    print(json.dumps({
        "framework_ids": [framework_id, second.subscribed[0][0]],
        "version": driver.version, "states": first.states, "killed_later": second.states,
        "implicit": implicit, "explicit": explicit, "after_failover": after,
        "declined": first.declined, "silent_while_suppressed": silent,
        "errors": first.errors + second.errors,
    }))


if __name__ == "__main__":
    main(sys.argv[1])
