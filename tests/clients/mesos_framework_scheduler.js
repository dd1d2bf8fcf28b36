// A scheduler on an unmodified mesos-framework (npm): tasks to their end.
//
// usage: node mesos_framework_scheduler.js HOST:PORT LOG_DIR
// Prints one JSON object of what became of each task; exits 1 when they did not end in time.
"use strict";

var framework = require("mesos-framework");
var Mesos = framework.Mesos.getMesos();

var COUNT = 5;
var PATIENCE_MS = 60000;
var states = {};
var master = process.argv[2].split(":");

var scheduler = new framework.Scheduler({
    masterUrl: master[0],
    port: parseInt(master[1], 10),
    frameworkName: "mesos-framework",
    logging: {level: "error", path: process.argv[3], fileName: "scheduler.log"},
    restartStates: [],
    tasks: {
        job: {
            priority: 1,
            instances: COUNT,
            commandInfo: new Mesos.CommandInfo(null, null, true, "echo $HOST $PORT0", null, null),
            resources: {cpus: 0.1, mem: 16, ports: 1, disk: 0}
        }
    }
});

scheduler.on("ready", function () {
    scheduler.subscribe();
});

scheduler.on("update", function (update) {
    var status = update.status || update;
    states[status.task_id.value] = status.state;
    var ended = Object.keys(states).filter(function (id) {
        return states[id] === "TASK_FINISHED";
    });
    if (ended.length === COUNT) {
        console.log(JSON.stringify(states));
        process.exit(0);
    }
});

scheduler.on("error", function (error) {
    console.error(error.message || error);
});

setTimeout(function () {
    console.error("not in time: " + JSON.stringify(states));
    process.exit(1);
}, PATIENCE_MS);
