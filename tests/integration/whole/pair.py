"""Starts two holder processes below itself and lets them compete for the quota of the run they belong to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HOLDER = Path(__file__).with_name("holder.py")


class Child:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HOLDER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def main() -> None:
    first, second = Child(), Child()
    print("first-ok" if "error" not in first.ask("alloc 700") else "first-failed")
    out_of_memory = second.ask("alloc 400").get("error") == "CUDA_ERROR_OUT_OF_MEMORY"
    print("second-oom" if out_of_memory else "second-got-it")
    print("first-runs" if "error" not in first.ask("spin 1") else "first-failed")
    first.ask("free")
    print("second-ok-after-free" if "error" not in second.ask("alloc 400") else "second-failed")
    for child in (first, second):
        child.process.communicate("quit\n")


if __name__ == "__main__":
    main()
