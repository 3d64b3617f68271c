"""A ``kubectl`` whose cluster is a directory: pods are processes under libnvshare.so on a simulated node.

    python kubectl_double.py DIRECTORY ARGUMENTS OF KUBECTL...

``cluster.json`` in the directory names the node's variables, GPUs and the faults that are asked for. Stands in for the
kubelet, the device plugin (least used GPU) and the pod watch (annotations, names in the scheduler's log).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from nvshare import procfs
from nvshare.client.connection import Connection

NEVER_RUN = {"no-image", "refused"}
MEMORY = "nvshare.com/gpu-memory-limit"


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write(path: Path, content: object) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(content))
    aside.replace(path)


def stamp(source: Any, target: Path) -> None:
    """Copy lines with the time at which they came."""
    with target.open("a", buffering=1) as log:
        for line in source:
            log.write(f"{now()} {line}")


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: dict[str, Any] = json.loads((directory / "cluster.json").read_text())
        self.faults = set(self.told["faults"])

    def pods(self) -> list[Path]:
        return sorted((self.directory / "pods").glob("*/object.json"))

    def place(self, name: str) -> Path:
        return self.directory / "pods" / name

    # what the kubelet, the plugin and the watch do

    def create(self, pod: dict[str, Any]) -> None:
        place = self.place(pod["metadata"]["name"])
        place.mkdir(parents=True)
        used = [json.loads(one.read_text())["gpu"] for one in self.pods()]
        least = min(self.told["gpus"], key=used.count)
        pod["gpu"] = self.told["gpus"][0] if "one-gpu" in self.faults else least
        pod["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()[:19] + "Z"}
        pod["spec"]["nodeName"] = "node-1"
        write(place / "object.json", pod)
        phase: dict[str, Any] = {"phase": "Pending"}
        if "no-image" in self.faults:
            waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
            phase |= {"containerStatuses": [{"state": {"waiting": waiting}}]}
        if "refused" in self.faults:
            phase = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no such device"}
        write(place / "status.json", phase)
        if not self.faults & NEVER_RUN:
            command = [sys.executable, __file__, str(self.directory), "run-pod", pod["metadata"]["name"]]
            subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run_pod(self, name: str) -> None:
        place = self.place(name)
        pod = json.loads((place / "object.json").read_text())
        container = pod["spec"]["containers"][0]
        variables = {**os.environ, **self.told["variables"], "CUDA_VISIBLE_DEVICES": pod["gpu"]}
        variables |= {one["name"]: one["value"] for one in container["env"]}
        if "unmanaged" not in self.faults:
            variables["LD_PRELOAD"] = self.told["library"]
        limit = pod["metadata"]["annotations"].get(MEMORY)
        if limit and "limit-ignored" not in self.faults:
            variables["NVSHARE_GPU_MEMORY_LIMIT"] = limit
        process = subprocess.Popen(
            [sys.executable, *container["command"][1:]],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            write(place / "pids.json", [os.getpid(), process.pid])
            write(place / "status.json", {"phase": "Running"})
            stamp(process.stdout, place / "log")
            code = process.wait()
            ended = {"containerStatuses": [{"state": {"terminated": {"exitCode": code}}}]}
            write(place / "status.json", {"phase": "Failed" if code else "Succeeded", **ended})
        process.wait()

    def annotate(self, name: str, assignment: str) -> None:
        key, _, value = assignment.partition("=")
        place = self.place(name)
        pod = json.loads((place / "object.json").read_text())
        pod["metadata"]["annotations"][key] = value
        write(place / "object.json", pod)
        if key == MEMORY and "raise-ignored" not in self.faults:
            pid = json.loads((place / "pids.json").read_text())[1]
            with Connection(Path(self.told["socket"])) as connection:
                connection.request("limit", target={"pid": pid}, mem=int(value))

    def delete(self) -> None:
        for one in self.pods():
            place = one.parent
            while not (place / "pids.json").exists() and not self.faults & NEVER_RUN:
                time.sleep(0.01)
            with contextlib.suppress(FileNotFoundError):
                for pid in reversed(json.loads((place / "pids.json").read_text())):
                    procfs.kill(pid, 10.0)
            shutil.rmtree(place)

    # what kubectl prints

    def list_pods(self, selector: str) -> dict[str, Any]:
        if selector == "name=nvshare-scheduler":
            there = [] if "no-scheduler" in self.faults else ["nvshare-scheduler-x1"]
            return {"items": [{"metadata": {"name": name}, "spec": {"nodeName": "node-1"}} for name in there]}
        wanted = selector.partition("=")[2]
        items = []
        for one in self.pods():
            pod = json.loads(one.read_text())
            if not wanted or wanted in pod["metadata"]["labels"].values():
                items.append({**pod, "status": json.loads((one.parent / "status.json").read_text())})
        return {"items": items}

    def log(self, name: str, tail: int | None) -> str:
        if name.startswith("nvshare-scheduler"):
            return self._named((self.directory / "scheduler.log").read_text())
        path = self.place(name) / "log"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return "".join(lines if tail is None else lines[-tail:])

    def _named(self, text: str) -> str:
        for one in self.pods():
            name, place = one.parent.name, one.parent
            client = re.search(r"Client ID = ([0-9a-f]{16})", self.log(name, None))
            if client:
                before = f"(Registered client {client[1]} .*) Pod name = none, Pod namespace = none"
                text = re.sub(before, rf"\1 Pod name = {name}, Pod namespace = default", text)
            if (place / "pids.json").exists():
                pid = json.loads((place / "pids.json").read_text())[1]
                text = text.replace(f"changed for process {pid}:", f"changed for pod default/{name}:")
        return text

    def execute(self, command: list[str]) -> int:
        if command[:3] == ["nvsharectl", "set", "--mode"] and "mode-ignored" in self.faults:
            return 0
        variables = {**os.environ, "NVSHARE_SOCK": self.told["socket"]}
        program = [sys.executable, "-m", "nvshare.cli.ctl", *command[1:]]
        return subprocess.run(program, env=variables, check=False).returncode


def main() -> int:
    directory, *arguments = sys.argv[1:]
    cluster = Cluster(Path(directory))
    if arguments[0] == "run-pod":
        cluster.run_pod(arguments[1])
        return 0
    with (cluster.directory / "calls").open("a") as calls:
        calls.write(" ".join(arguments) + "\n")
    if "unreachable" in cluster.faults:
        print("The connection to the server localhost:8080 was refused", file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    for option in ("namespace", "selector", "output", "container", "timeout", "since-time"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--tail", type=int)
    parser.add_argument("--filename", action="append")
    for flag in ("timestamps", "overwrite", "now", "ignore-not-found", "wait"):
        parser.add_argument(f"--{flag}", action="store_true")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    given = parser.parse_intermixed_args(arguments[:split])
    verb, *words = given.words
    if verb == "get" and words[0] == "daemonset":
        release = {"meta.helm.sh/release-name": "mine"} if "helm" in cluster.faults else {}
        pod: dict[str, Any] = {"spec": {"containers": [{"env": []}]}}
        print(json.dumps({"metadata": {"annotations": release}, "spec": {"template": pod}}))
    elif verb == "get":
        print(json.dumps(cluster.list_pods(given.selector)))
    elif verb == "create":
        for pod in json.load(sys.stdin)["items"]:
            cluster.create(pod)
    elif verb == "logs" and cluster.faults & NEVER_RUN and not words[0].startswith("nvshare-scheduler"):
        print("Error from server (BadRequest): container is not available", file=sys.stderr)
        return 1
    elif verb == "logs":
        sys.stdout.write(cluster.log(words[0], given.tail))
    elif verb == "annotate":
        cluster.annotate(words[1], words[2])
    elif verb == "delete":
        cluster.delete()
    elif verb == "exec":
        return cluster.execute(arguments[split + 1 :])
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
