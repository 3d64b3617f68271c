"""The only way to the cluster: ``kubectl``, with the kubeconfig that it finds. Decides nothing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvshare.acceptance.kube_test.plan import CONTAINER, RUN_LABEL

SYSTEM_NAMESPACE = "nvshare-system"
SCHEDULER, DEVICE_PLUGIN = "nvshare-scheduler", "nvshare-device-plugin"
SCHEDULER_CONTAINER = "scheduler"
_PATIENCE = 60.0  # seconds for a query
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d")  # how the log lines of kubectl begin
_ENDING = 120  # seconds for pods to be gone


class KubectlFailed(Exception):
    """kubectl failed; the text is its own message in one line."""


def _in_short(done: subprocess.CompletedProcess[str]) -> str:
    """The final message, without the log lines before it."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    said = [line for line in lines if not _LOGGED.match(line)] or lines[-1:]
    return " ".join(" ".join(said).split()) or f"ended with {done.returncode}"


class Kubectl:
    def __init__(self, program: str, arguments: Sequence[str] = ()) -> None:
        self._command = [program, *arguments]

    def call(self, *arguments: str, given: str | None = None, patience: float = _PATIENCE) -> str:
        """What it prints."""
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=patience,
                start_new_session=True,  # Ctrl-C does not reach kubectl: a delete that has begun is finished
                check=False,
            )
        except FileNotFoundError:
            raise KubectlFailed(f"{self._command[0]} not found: install kubectl, or name it with --kubectl") from None
        except PermissionError:
            raise KubectlFailed(f"{self._command[0]} cannot be run: name another with --kubectl") from None
        except subprocess.TimeoutExpired:
            raise KubectlFailed(f"kubectl {' '.join(arguments[:3])} took more than {patience:g} seconds") from None
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(arguments[:3])}: {_in_short(done)}")
        return done.stdout

    def _get(self, *arguments: str) -> dict[str, Any]:
        return self._parsed(self.call("get", *arguments, "--output", "json"))

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise KubectlFailed(f"{self._command[0]} does not answer in JSON: is it kubectl?")
        return found

    def apply(self, files: Sequence[Path]) -> None:
        self.call("apply", *(part for file in files for part in ("--filename", str(file))))

    def restart(self, daemonset: str) -> None:
        self.call("rollout", "restart", f"daemonset/{daemonset}", "--namespace", SYSTEM_NAMESPACE)

    def await_rollout(self, daemonset: str, seconds: float) -> None:
        where = ("--namespace", SYSTEM_NAMESPACE, "--timeout", f"{seconds:.0f}s")
        self.call("rollout", "status", f"daemonset/{daemonset}", *where, patience=seconds + _PATIENCE)

    def daemonset(self, name: str) -> dict[str, Any]:
        return self._get("daemonset", name, "--namespace", SYSTEM_NAMESPACE)

    def release_of(self, daemonset: str) -> str:
        """The Helm release that it belongs to; empty when it belongs to none, or is not there."""
        where = ("--namespace", SYSTEM_NAMESPACE, "--ignore-not-found", "--output", "json")
        found = self._parsed(self.call("get", "daemonset", daemonset, *where) or "{}")
        annotations = found.get("metadata", {}).get("annotations") or {}
        return str(annotations.get("meta.helm.sh/release-name", ""))

    def schedulers(self) -> list[dict[str, Any]]:
        """The pods of the schedulers."""
        pods = self._get("pods", "--namespace", SYSTEM_NAMESPACE, "--selector", f"name={SCHEDULER}")
        items: list[dict[str, Any]] = pods["items"]
        return items

    def in_scheduler(self, pod: str, *command: str) -> str:
        where = ("--namespace", SYSTEM_NAMESPACE, "--container", SCHEDULER_CONTAINER)
        return self.call("exec", pod, *where, "--", *command)

    def scheduler_log(self, pod: str, since: str) -> str:
        where = ("--namespace", SYSTEM_NAMESPACE, "--container", SCHEDULER_CONTAINER)
        return self.call("logs", pod, *where, "--timestamps", "--since-time", since)

    def create(self, objects: dict[str, Any]) -> None:
        self.call("create", "--filename", "-", given=json.dumps(objects))

    def pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._get("pods", "--namespace", namespace, "--selector", selector)["items"]
        return items

    def log(self, pod: str, namespace: str, tail: int | None = None) -> str:
        last = () if tail is None else ("--tail", str(tail))
        return self.call("logs", pod, "--namespace", namespace, "--container", CONTAINER, "--timestamps", *last)

    def annotate(self, pod: str, namespace: str, key: str, value: str) -> None:
        self.call("annotate", "pod", pod, "--namespace", namespace, "--overwrite", f"{key}={value}")

    def delete_runs(self, namespace: str, run_id: str | None = None) -> None:
        """The pods of one run, or of all runs that ever were; returns when they are gone."""
        selector = RUN_LABEL if run_id is None else f"{RUN_LABEL}={run_id}"
        what = ("pods", "--namespace", namespace, "--selector", selector, "--now", "--ignore-not-found")
        self.call("delete", *what, "--wait", "--timeout", f"{_ENDING}s", patience=_ENDING + _PATIENCE)
