"""What frequent calls cost inside libnvshare.so, in instructions: a launch (free, or in a compute turn), a
stream-ordered allocation with its free.

Counted by callgrind; the driver and the C library are excluded. Two runs of the same program on a simulated node, with
and without the calls; their difference, divided by their number, is the mean. It includes the samples that the meter
takes and what the link thread does meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from nvshare import native  # noqa: E402
from nvshare.gpu import sim  # noqa: E402
from nvshare.wire import messages as wire  # noqa: E402
from nvshare.wire.codec import Decoder, Encoder  # noqa: E402

LIMITS = {"launches": 60, "turns": 600, "pairs": 600}
IN_FLIGHT_US = 1000
_NAMED = re.compile(r"(?P<key>c?ob|fn|fl|fi|fe|cfn|cfi|cfl)=\((?P<id>\d+)\)(?: (?P<name>.*))?")


def instructions_by_object(text: str) -> Counter[str]:
    """Instructions executed in each object file, from the output of callgrind (self cost, calls excluded)."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    current = "?"
    is_call = False
    for line in text.splitlines():
        named = _NAMED.match(line)
        if named:
            if named["key"] in ("ob", "cob") and named["name"] is not None:
                names[named["id"]] = named["name"]
            if named["key"] == "ob":
                current = names[named["id"]]
        elif line.startswith("calls="):
            is_call = True  # the next line is the cost of the callee
        elif line[:1] in "+-*0123456789" and line[:1]:
            if not is_call:
                costs[current] += int(line.split()[1])
            is_call = False
    return costs


def build_program(directory: Path) -> Path:
    """Compile the program that launches or allocates."""
    program = directory / "launch_cost"
    source, headers = ROOT / "benchmarks" / "launch_cost.c", ROOT / "native" / "include"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", f"-I{headers}", "-o", str(program), str(source), "-ldl"], check=True)
    return program


def count(program: Path, what: str, number: int, directory: Path, env: dict[str, str]) -> int:
    """Instructions inside libnvshare.so in one run."""
    output = directory / f"callgrind.{what}.{number}"
    subprocess.run(
        ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={output}", program, what, str(number)],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    costs = instructions_by_object(output.read_text())
    return sum(cost for name, cost in costs.items() if Path(name).name == "libnvshare.so")


def give_one_turn(listening: socket.socket) -> None:
    """A scheduler for one program after the other: each gets the card, and a compute turn without an end."""
    answers: dict[type[wire.Message], list[wire.Message]] = {
        wire.Register: [wire.SchedOn(1), wire.UpdateLimit(0, 0, 0), wire.Terms(0, wire.FLAG_TURNS, IN_FLIGHT_US)],
        wire.ReqLock: [wire.LockOk(0, 1)],
        wire.ReqTurn: [wire.TurnOk(0, 1)],
    }
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        encoder, decoder = Encoder(), Decoder()
        with client:
            while data := client.recv(65536):
                for message in decoder.feed(data):
                    for answer in answers.get(type(message), []):  # type: ignore[arg-type]
                        client.sendall(encoder.encode(answer))


def measure(what: str, number: int) -> dict[str, Any]:
    """The mean of so many calls of a kind in ``LIMITS``, and what it came from; ``skipped`` says why there is none."""
    if shutil.which("valgrind") is None:
        return {"skipped": "valgrind is not installed"}
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return {"skipped": "there is no C compiler"}
    node = sim.up("1xT4", name=f"launch-cost-{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix="nvshare-launch-cost-") as name:
            directory = Path(name)
            env = {
                **os.environ,
                **node.env(),
                "NVSHARE_SOCK": str(directory / "scheduler.sock"),
                "LD_PRELOAD": str(native.interposer()),
            }
            program = build_program(directory)
            called = "pairs" if what == "pairs" else "launches"
            with socket.socket(socket.AF_UNIX) as listening:
                if what == "turns":
                    listening.bind(env["NVSHARE_SOCK"])
                    listening.listen()
                    threading.Thread(target=give_one_turn, args=[listening], daemon=True).start()
                without, with_calls = (count(program, called, calls, directory, env) for calls in (0, number))
                if what == "turns":
                    listening.shutdown(socket.SHUT_RDWR)
    finally:
        sim.down(node.name)
    return {
        "simulated": True,
        what: number,
        "instructions_each": round((with_calls - without) / number, 1),
        "instructions": {"with": with_calls, "without": without},
        "limit": LIMITS[what],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=10_000, help="launches in a compute turn")
    parser.add_argument("--pairs", type=int, default=10_000, help="allocations with their frees")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    try:
        results = {what: measure(what, getattr(options, what)) for what in LIMITS}
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(map(str, error.cmd))} failed:\n{error.stderr or ''}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    code = 0
    for what, result in results.items():
        if "skipped" in result:
            print(f"{what} skipped: {result['skipped']}")
            continue
        mean, limit = result["instructions_each"], result["limit"]
        verdict = "within" if mean <= limit else "above"
        print(f"{what}: {mean} instructions inside libnvshare.so each, {verdict} the limit of {limit}")
        code = code if mean <= limit else 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
