#!/usr/bin/env python3
"""Reservations and a volume through an unmodified pymesos: scheduler, and executor on the volume.

usage: pymesos_reservations.py executor
       pymesos_reservations.py scheduler HOST:PORT
The scheduler prints one JSON object of what it saw. It prints `restart` on the way and goes on when it
reads a line; it exits 1, saying why, when something did not come in time.
"""
import json
import os
import sys

from addict import Dict
from pymesos import Executor, MesosExecutorDriver, MesosSchedulerDriver

# The source tree stays as it is.
sys.dont_write_bytecode = True
from pymesos_executor import Watcher, amounts  # noqa: E402

ROLE = "dev"
ATTEMPTS = 10


def reserved(name, value):
    return dict(name=name, type="SCALAR", scalar={"value": value}, role=ROLE, reservation={})


def volume():
    return dict(reserved("disk", 64), disk=dict(
        persistence={"id": "v"}, volume={"container_path": "data", "mode": "RW"}))


def is_reserved(resource):
    return resource.get("role", "*") == ROLE


def is_volume(resource):
    return resource.get("disk", {}).get("persistence", {}).get("id") == "v"


def total(offer, name, wanted):
    return sum(one.scalar.value for one in offer.resources if one.name == name and wanted(one))


class Noter(Executor):
    """Notes each task on the volume that it was given, if any."""

    def launchTask(self, driver, task):
        for resource in task.resources:
            if is_volume(resource):
                path = os.path.join(resource.disk.volume.container_path, "notes")
                with open(path, "a") as notes:
                    notes.write("noted\n")
        self.tell(driver, task.task_id.value, "TASK_RUNNING")

    def killTask(self, driver, task_id):
        self.tell(driver, task_id.value, "TASK_KILLED")

    @staticmethod
    def tell(driver, task_id, state):
        update = Dict()
        update.task_id.value = task_id
        update.state = state
        driver.sendStatusUpdate(update)


class Reserver(Watcher):
    """Takes the offers that fit what it is at, until one shows that it is done."""

    def __init__(self):
        super().__init__()
        self.at = None

    def resourceOffers(self, driver, offers):
        for offer in offers:
            operations = None
            with self.changed:
                if self.at:
                    is_done, fits, make = self.at
                    if is_done and is_done(offer):
                        self.at = None
                        self.changed.notify_all()
                    elif fits(offer):
                        operations = make(offer)
                        if not is_done:
                            self.at = None
                            self.changed.notify_all()
            self.agent_id = offer.agent_id
            if operations:
                driver.acceptOffers(offer.id, operations, {"refuse_seconds": 0.1})
            else:
                driver.declineOffer(offer.id, {"refuse_seconds": 0.1})

    def until(self, what, is_done, fits, operations):
        """Asks again with each offer that fits: one may have been taken back meanwhile."""
        with self.changed:
            self.at = (is_done, fits, lambda offer: operations)
        self.wait(what, lambda: self.at is None)

    def run(self, name, ends, fits, make):
        """Runs a task until it has one of the states."""
        for attempt in range(ATTEMPTS):
            name = "%s%d" % (name.rstrip("0123456789"), attempt)

            def launch(offer):
                return [dict(type="LAUNCH", launch=dict(task_infos=[make(offer, name)]))]
            with self.changed:
                self.at = (None, fits, launch)
            self.wait("an offer for %s" % name, lambda: self.at is None)
            self.wait("%s is %s" % (name, ends), lambda: self.states.get(name, [""])[-1] in
                      ends + ("TASK_LOST", "TASK_FAILED", "TASK_ERROR"))
            if self.states[name][-1] in ends:
                return name
            if self.states[name][-1] != "TASK_LOST":
                sys.exit("%s: %s" % (name, self.statuses[name]))
        sys.exit("%s is lost again and again" % name)


def task(offer, name, resources):
    info = Dict()
    info.task_id.value = name
    info.name = name
    info.agent_id.value = offer.agent_id.value
    info.resources = resources
    return info


def in_executor(resources):
    def make(offer, name):
        info = task(offer, name, resources)
        info.executor.executor_id.value = "noter"
        info.executor.name = "noter"
        info.executor.command.value = "exec %s %s executor" % (
            sys.executable, os.path.abspath(__file__))
        info.executor.resources = amounts(0.1, 128)
        return info
    return make


def command(text, resources):
    def make(offer, name):
        info = task(offer, name, resources)
        info.command.value = text
        return info
    return make


def schedule(master):
    info = Dict()
    info.user = "root"
    info.name = "pymesos-reservations"
    info.role = ROLE
    info.checkpoint = True
    info.failover_timeout = 60
    watcher = Reserver()
    driver = MesosSchedulerDriver(watcher, info, master, use_addict=True)
    driver.start()
    watcher.wait("SUBSCRIBED", lambda: watcher.subscribed)

    def has_cpus(offer):
        return total(offer, "cpus", lambda one: not is_reserved(one)) >= 1

    def has_volume(offer):
        return total(offer, "disk", is_volume) == 64 and has_cpus(offer)

    def has_plain(offer):
        return (total(offer, "cpus", is_reserved) == 1
                and total(offer, "disk", lambda one: is_reserved(one) and not is_volume(one)) == 64)

    def has_nothing(offer):
        return has_cpus(offer) and not any(is_reserved(one) for one in offer.resources)

    plain = [reserved("cpus", 1), reserved("disk", 64)]
    watcher.until("a reservation", has_plain, has_nothing,
                  [dict(type="RESERVE", reserve=dict(resources=plain))])
    watcher.until("a volume", has_volume, has_plain,
                  [dict(type="CREATE", create=dict(volumes=[volume()]))])
    # An executor that runs already is given a task with the volume.
    first = watcher.run("first", ("TASK_RUNNING",), has_volume, in_executor(amounts(0.1, 16)))
    second = watcher.run("second", ("TASK_RUNNING",), has_volume,
                         in_executor(amounts(0.1, 16) + [volume()]))

    print("restart", flush=True)
    sys.stdin.readline()
    driver.killTask(Dict(value=second))
    watcher.ended(second, "TASK_KILLED")
    read = watcher.run(
        "read", ("TASK_FINISHED",), has_volume,
        command("grep -qx noted data/notes && echo more >> data/notes",
                amounts(0.1, 16) + [volume()]))
    driver.killTask(Dict(value=first))
    watcher.ended(first, "TASK_KILLED")
    watcher.until("the volume's end", has_plain, has_volume,
                  [dict(type="DESTROY", destroy=dict(volumes=[volume()]))])
    watcher.until("the reservation's end", has_nothing, has_plain,
                  [dict(type="UNRESERVE", unreserve=dict(resources=plain))])
    states = {name: watcher.states[name] for name in (first, second, read)}
    driver.stop()
    driver.join()
    print(json.dumps(dict(states=list(states.values()), errors=watcher.errors)))


if __name__ == "__main__":
    if sys.argv[1] == "executor":
        MesosExecutorDriver(Noter(), use_addict=True).run()
    else:
        schedule(sys.argv[2])
