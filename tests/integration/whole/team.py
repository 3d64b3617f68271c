"""Starts two holder processes below itself, then does what its standard input says: ``first COMMAND``,
``second COMMAND``, ``smi`` (a management tool started from here), ``pids``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pair import Child

SMI = Path(__file__).with_name("smi.py")


def main() -> None:
    members = {"first": Child(), "second": Child()}
    for line in sys.stdin:
        what, _, command = line.strip().partition(" ")
        if what == "pids":
            answer = {name: child.process.pid for name, child in members.items()}
        elif what == "smi":
            answer = json.loads(subprocess.run([sys.executable, SMI], check=True, capture_output=True).stdout)
        else:
            answer = members[what].ask(command)
        print(json.dumps(answer), flush=True)
    for child in members.values():
        child.process.communicate("quit\n")


if __name__ == "__main__":
    main()
