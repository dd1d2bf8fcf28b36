#!/usr/bin/env python3
"""An executor on an unmodified pymesos, and the scheduler whose tasks it runs.

usage: pymesos_executor.py executor
       pymesos_executor.py scheduler HOST:PORT
The scheduler prints one JSON object of what it saw. It prints `restart` on the way and goes on when it
reads a line; it exits 1, saying why, when something did not come in time.
"""
import json
import os
import sys
import threading

from addict import Dict
from pymesos import (
    Executor, MesosExecutorDriver, MesosSchedulerDriver, Scheduler, decode_data, encode_data)

PATIENCE_SECS = 60


class Runner(Executor):
    """Says that every task runs, ends those it is told to, and answers messages."""

    @staticmethod
    def tell(driver, task_id, state):
        update = Dict()
        update.task_id.value = task_id
        update.state = state
        driver.sendStatusUpdate(update)

    def launchTask(self, driver, task):
        self.tell(driver, task.task_id.value, "TASK_RUNNING")

    def killTask(self, driver, task_id):
        self.tell(driver, task_id.value, "TASK_KILLED")

    def frameworkMessage(self, driver, message):
        text = decode_data(message)
        if text == b"die":
            os._exit(9)
        driver.sendFrameworkMessage(encode_data(b"echo " + text))


class Watcher(Scheduler):
    """Launches what is wanted and remembers everything it is told."""

    def __init__(self):
        self.wanted = []
        self.changed = threading.Condition()
        self.subscribed = False
        self.agent_id = None
        self.states = {}
        self.statuses = {}
        self.messages = []
        self.lost = []
        self.errors = []

    def registered(self, driver, framework_id, master_info):
        with self.changed:
            self.subscribed = True
            self.changed.notify_all()

    def resourceOffers(self, driver, offers):
        for offer in offers:
            with self.changed:
                wanted = self.wanted.pop(0) if self.wanted else None
            if wanted is None:
                driver.declineOffer(offer.id, {"refuse_seconds": 0.1})
                continue
            self.agent_id = offer.agent_id
            driver.launchTasks(offer.id, [self.task(offer, *wanted)], {"refuse_seconds": 0.1})

    @staticmethod
    def task(offer, name, executor):
        task = Dict()
        task.task_id.value = name
        task.name = name
        task.agent_id.value = offer.agent_id.value
        task.resources = amounts(0.1, 16)
        task.executor.executor_id.value = executor
        task.executor.name = executor
        task.executor.command.value = "exec %s %s executor" % (
            sys.executable, os.path.abspath(__file__))
        task.executor.resources = amounts(0.1, 128)
        return task

    def statusUpdate(self, driver, update):
        with self.changed:
            name = update.task_id.value
            self.states.setdefault(name, []).append(update.state)
            self.statuses[name] = update
            self.changed.notify_all()

    def frameworkMessage(self, driver, executor_id, agent_id, message):
        with self.changed:
            self.messages.append([executor_id.value, decode_data(message).decode()])
            self.changed.notify_all()

    def executorLost(self, driver, executor_id, agent_id, status):
        with self.changed:
            self.lost.append([executor_id.value, status])
            self.changed.notify_all()

    def error(self, driver, message):
        with self.changed:
            self.errors.append(message)
            self.changed.notify_all()

    def wait(self, what, condition):
        with self.changed:
            if not self.changed.wait_for(condition, PATIENCE_SECS):
                sys.exit("not in time: %s; states %s, messages %s, lost %s, errors %s" % (
                    what, self.states, self.messages, self.lost, self.errors))

    def launch(self, name, executor):
        with self.changed:
            self.wanted.append((name, executor))
        self.wait("%s runs" % name, lambda: "TASK_RUNNING" in self.states.get(name, []))

    def ended(self, name, state):
        self.wait("%s is %s" % (name, state), lambda: self.states[name][-1] == state)


def amounts(cpus, mem):
    return [
        dict(name="cpus", type="SCALAR", scalar={"value": cpus}),
        dict(name="mem", type="SCALAR", scalar={"value": mem}),
    ]


def schedule(master):
    info = Dict()
    info.user = "root"
    info.name = "pymesos-executor"
    info.role = "dev"
    info.checkpoint = True
    info.failover_timeout = 60
    watcher = Watcher()
    driver = MesosSchedulerDriver(watcher, info, master, use_addict=True)
    driver.start()
    watcher.wait("SUBSCRIBED", lambda: watcher.subscribed)
    watcher.launch("a", "first")
    first = Dict(value="first")
    driver.sendFrameworkMessage(first, watcher.agent_id, encode_data(b"one"))
    watcher.wait("an echo", lambda: ["first", "echo one"] in watcher.messages)

    print("restart", flush=True)
    sys.stdin.readline()
    # The executor is back on its stream: it gets another task, messages and kills.
    watcher.launch("b", "first")
    driver.sendFrameworkMessage(first, watcher.agent_id, encode_data(b"two"))
    watcher.wait("an echo", lambda: ["first", "echo two"] in watcher.messages)
    driver.killTask(Dict(value="a"))
    watcher.ended("a", "TASK_KILLED")

    # SHUTDOWN has no method of its own in pymesos.
    driver._send(dict(
        type="SHUTDOWN",
        framework_id=dict(value=driver.framework_id),
        shutdown=dict(executor_id=first, agent_id=watcher.agent_id),
    ))
    watcher.ended("b", "TASK_FAILED")
    watcher.wait("its executor is gone", lambda: watcher.lost)

    watcher.launch("c", "second")
    driver.sendFrameworkMessage(Dict(value="second"), watcher.agent_id, encode_data(b"die"))
    watcher.ended("c", "TASK_FAILED")
    watcher.wait("its executor is gone", lambda: len(watcher.lost) == 2)
    driver.stop()
    driver.join()
    print(json.dumps(dict(
        states=watcher.states,
        reason=watcher.statuses["c"].reason,
        lost=watcher.lost,
        errors=watcher.errors,
    )))


if __name__ == "__main__":
    if sys.argv[1] == "executor":
        MesosExecutorDriver(Runner(), use_addict=True).run()
    else:
        schedule(sys.argv[2])
