"""Launch configurations: ``nvshare launch`` as users call it, on workers that report which GPUs they see."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvshare import config
from nvshare.acceptance.finding import Verdict
from nvshare.acceptance.runner import Check
from nvshare.acceptance.stress.scene import Scene
from nvshare.launch.orders import with_package

_TIMEOUT = 120.0
_GRACE = 15.0  # seconds that a launch has to end its workers
_MIB = 1 << 20
_QUOTA = 128 * _MIB
Report = dict[str, Any]


@dataclass(frozen=True)
class Configuration:
    """``expected`` says from the reports of all workers what is wrong; empty: nothing."""

    name: str
    options: tuple[str, ...]
    workers: int
    expected: Callable[[list[Report]], str]
    says: tuple[str, ...] = ("GPU validation successful",)
    variables: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()  # instead of the probe
    prints: str = ""  # what that one is to print, on a line of its own, once for each worker


def configurations(scene: Scene) -> list[Configuration]:
    cards = scene.cards
    allowed = [cards.index(uuid) for uuid in cards.allowed]
    first, count = cards.allowed[0], len(cards.allowed)
    subset = (allowed[0], allowed[2]) if count > 2 else (allowed[-1],)
    chosen = [cards.all[index] for index in subset]
    numbers = ",".join(map(str, subset))
    listed = ",".join(map(str, allowed))
    using = f"Using GPUs: {allowed}"
    cpu = ("--gpus", "cpu")
    return [
        Configuration("one GPU", ("--gpus", str(allowed[0])), 1, _each_once([first])),
        Configuration(
            "all", ("--gpus", "all"), count, _each_once(cards.allowed), (using, f"CUDA_VISIBLE_DEVICES: {listed}")
        ),
        Configuration("a subset", ("--gpus", numbers), 2 * len(chosen), _each_once(chosen * 2)),
        Configuration("all for one worker", ("--gpus-per-worker", str(count)), 1, _all_of(cards.allowed)),
        Configuration("forced CPU", cpu, 2, _no_gpu),
        Configuration(
            "fractions", ("--gpus", str(allowed[0]), "--mem", str(_QUOTA), "--cores", "25"), 4, _fractions(first)
        ),
        Configuration(
            "any command",
            ("--gpus", str(allowed[0])),
            1,
            lambda reports: "",
            command=("sh", "-c", "echo sees:$CUDA_VISIBLE_DEVICES"),
            prints=f"sees:{first}",
        ),
        Configuration("any command on the CPU", cpu, 1, lambda reports: "", command=_LOOK_FOR_NONE, prints="none"),
        Configuration(
            "outer CUDA_VISIBLE_DEVICES",
            (),
            len(chosen),
            _each_once(chosen),
            (f"Using GPUs: {list(subset)}",),
            {"CUDA_VISIBLE_DEVICES": numbers},
        ),
        Configuration(
            "empty outer CUDA_VISIBLE_DEVICES",
            (),
            2,
            _no_gpu,
            ("No GPUs detected - falling back to CPU mode",),
            {"CUDA_VISIBLE_DEVICES": ""},
        ),
    ]


_LOOK_FOR_NONE = ("sh", "-c", 'test -z "$CUDA_VISIBLE_DEVICES" && echo none')


def _each_once(uuids: Any) -> Callable[[list[Report]], str]:
    """Each worker sees one GPU; together they see these, each as often as it is listed."""

    def problem(reports: list[Report]) -> str:
        seen = sorted(",".join(report["uuids"]) for report in reports)
        children = sorted(",".join(report["child"]) for report in reports)
        wanted = sorted(uuids)
        return "" if seen == children == wanted else f"workers saw {seen}, their children {children}, not {wanted}"

    return problem


def _all_of(uuids: tuple[str, ...]) -> Callable[[list[Report]], str]:
    def problem(reports: list[Report]) -> str:
        seen = sorted(reports[0]["uuids"])
        return "" if seen == sorted(uuids) else f"the worker saw {seen}"

    return problem


def _no_gpu(reports: list[Report]) -> str:
    seen = [report for report in reports if report["uuids"] or report["child"] or report["visible"] != ""]
    return f"a worker saw {seen[0]}" if seen else ""


def _fractions(uuid: str) -> Callable[[list[Report]], str]:
    def problem(reports: list[Report]) -> str:
        for report in reports:
            seen = (report["uuids"], report["totals"], report["mem"], report["cores"])
            if seen != ([uuid], [_QUOTA], _QUOTA, 25):
                return f"a worker saw {seen}"
        return ""

    return problem


def checks(scene: Scene) -> list[Check[Scene]]:
    """One check per configuration. It sees what is wrong."""

    def launched(number: int, configuration: Configuration) -> Callable[[Scene], Verdict]:
        def carry_out(scene: Scene) -> Verdict:
            problem = _run(scene, configuration, scene.directory / f"launch-{number}")
            return Verdict(problem, ok=not problem)

        return carry_out

    return [Check(each.name, launched(number, each)) for number, each in enumerate(configurations(scene))]


def _run(scene: Scene, configuration: Configuration, directory: Path) -> str:
    directory.mkdir()
    try:
        probe = (sys.executable, "-m", "nvshare.acceptance.stress.probe", str(directory), str(configuration.workers))
        done = _launch(
            [*configuration.options, "--workers", str(configuration.workers), "--", *(configuration.command or probe)],
            config.child_environment(
                {**scene.address.variables, **scene.marked, **with_package(), **configuration.variables}
            ),
        )
        reports = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    except subprocess.TimeoutExpired:
        return f"not finished within {_TIMEOUT:g} s"
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return _judge(configuration, done, reports)


def _launch(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``nvshare launch``. On a timeout or Ctrl-C, let it end its workers first."""
    command = [sys.executable, "-m", "nvshare.cli.main", "launch", *arguments]
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches us alone; we end it
    ) as launcher:
        try:
            out, err = launcher.communicate(timeout=_TIMEOUT)
        except BaseException:
            launcher.terminate()
            try:
                launcher.communicate(timeout=_GRACE)
            except subprocess.TimeoutExpired:
                launcher.kill()  # its supervisors end the rest
            raise
    return subprocess.CompletedProcess(command, launcher.returncode, out, err)


def _judge(configuration: Configuration, done: subprocess.CompletedProcess[str], reports: list[Report]) -> str:
    lines = done.stdout.splitlines()
    if done.returncode != 0:
        return f"exit code {done.returncode}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
    for text in configuration.says:
        if text not in lines:
            return f"it did not say {text!r}"
    if configuration.command:
        count = lines.count(configuration.prints)
        return "" if count == configuration.workers else f"{configuration.prints!r} was printed {count} times"
    if len(reports) != configuration.workers:
        return f"{len(reports)} of {configuration.workers} workers reported"
    return next((report["error"] for report in reports if report["error"]), "") or configuration.expected(reports)
