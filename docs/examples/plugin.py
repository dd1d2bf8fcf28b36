#!/usr/bin/env python3
"""A resource estimator and a QoS controller for Meseta, in Python.

    pip install grpcio grpcio-tools
    plugin.py --proto=proto/proto --socket=/run/plugin.sock [--share=0.5] [--load=8]
    meseta agent --resource_estimator=unix:///run/plugin.sock --qos_controller=unix:///run/plugin.sock

The estimator oversubscribes a share of the CPUs that are allocated to regular executors. The controller evicts
every executor with revocable CPUs while the five-minute load is above a threshold.
"""

import argparse
import importlib
import sys
import tempfile
from concurrent import futures
from pathlib import Path

import grpc
import grpc_tools
from grpc_tools import protoc


def generate(folder):
    """Compiles the messages and services, and imports them."""
    out = tempfile.mkdtemp()
    files = ["mesos/v1/mesos.proto", "meseta/v1/oversubscription.proto"]
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    args = ["protoc", f"-I{folder}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}"]
    if protoc.main(args + files) != 0:
        sys.exit(f"the messages in {folder} cannot be compiled")
    sys.path.insert(0, out)
    messages = importlib.import_module("meseta.v1.oversubscription_pb2")
    services = importlib.import_module("meseta.v1.oversubscription_pb2_grpc")
    return messages, services


def cpus(resources, revocable):
    wanted = (r for r in resources if r.name == "cpus" and r.HasField("revocable") == revocable)
    return sum(r.scalar.value for r in wanted)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--proto", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--load", type=float, default=8.0)
    options = parser.parse_args()
    messages, services = generate(options.proto)

    class Estimator(services.ResourceEstimatorServicer):
        def Estimate(self, usage, context):
            promised = sum(cpus(e.allocated, False) for e in usage.resources.executors)
            revocable = sum(cpus(e.allocated, True) for e in usage.resources.executors)
            answer = messages.Oversubscribable()
            resource = answer.resources.add(name="cpus", type=0)
            resource.scalar.value = max(promised * options.share - revocable, 0.0)
            resource.revocable.SetInParent()
            return answer

    class Controller(services.QoSControllerServicer):
        def Correct(self, usage, context):
            answer = messages.Corrections()
            if usage.host.load_5min > options.load:
                for executor in usage.resources.executors:
                    if cpus(executor.allocated, True) > 0:
                        correction = answer.corrections.add(type=messages.QoSCorrection.KILL)
                        correction.kill.framework_id.value = executor.executor_info.framework_id.value
                        correction.kill.executor_id.value = executor.executor_info.executor_id.value
                        correction.reason = f"the load of 5 minutes is {usage.host.load_5min}"
            return answer

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services.add_ResourceEstimatorServicer_to_server(Estimator(), server)
    services.add_QoSControllerServicer_to_server(Controller(), server)
    server.add_insecure_port(f"unix://{options.socket}")
    server.start()
    print(f"serving at unix://{options.socket}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
