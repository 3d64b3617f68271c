"""Every result that any command writes has its page, and is read and compared by ``nvshare report``."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from nvshare.acceptance.finding import Finding
from nvshare.acceptance.kube_test.run import KubeTest
from nvshare.acceptance.stress.load import Outcome
from nvshare.acceptance.stress.run import Plan, Report
from nvshare.acceptance.stress.scene import Scene
from nvshare.bench import venues
from nvshare.bench.compute import live
from nvshare.bench.compute.stage import Rehearsal
from nvshare.bench.history import CardHistory, TaskHistory
from nvshare.bench.processes import Venue
from nvshare.bench.spans import Span
from nvshare.cli import demo, stress, verify
from nvshare.cli.main import main
from nvshare.gpu.profiles import parse_node
from nvshare.launch.address import Address, Cards
from nvshare.model.run import ModelBackend
from nvshare.report.page.compare import compared
from nvshare.report.page.kinds import KINDS, NotAResult, recognised
from nvshare.report.page.page import comparison_page, result_page
from tests.unit.acceptance.kube_evidence import BOTH, PARALLEL, REQUEST, seen

DATA = Path(__file__).parents[2] / "data"
LOGS = sorted((DATA / "concurrency" / "two-cards").glob("*.log"))
TESTBED = Venue("simulated", "1 x H200 (simulated)", ("GPU-1",), Path("/nowhere"), {})
Change = Callable[..., None]


def _nothing(change: Change) -> None:
    """The model needs no world, and a log is one."""


def _demo(change: Change) -> None:
    """On the cards of the model."""
    change(demo, "_venue", lambda: contextlib.nullcontext(TESTBED))
    change(demo, "ProcessBackend", lambda address: ModelBackend(*parse_node("2xT4")))


def _compute(change: Change) -> None:
    """Every scene is played in no time."""
    change(venues, "chosen", lambda *_: contextlib.nullcontext(TESTBED))
    change(live, "on", lambda *_, **__: contextlib.nullcontext(_Rehearsed(2.0, 0.5, mps="none")))


class _Rehearsed(Rehearsal):
    versions = {"torch": "2.0"}  # noqa: RUF012


def _verify(change: Change) -> None:
    found = Finding("parallel", "2 on", "2 on", True, "parallel when it fits", 1.2, {"a": [Span(0, 1)]})
    change(venues, "chosen", lambda *_: contextlib.nullcontext(TESTBED))
    change(verify, "verify", lambda *_: iter([found]))


def _stress(change: Change) -> None:
    def carry_out(title: str, plan: Plan, scene: Scene, watchers: object) -> Report:
        workers: list[dict[str, Any]] = [
            {"worker": 0, "ok": True, "ops": 80, "seconds": 2.0, "uuid": "GPU-1"},
            {"worker": 1, "ok": False},
        ]
        held = TaskHistory("0", ((0.0, 2.0),), ((0.0, 1 << 20, 0),))
        load = Outcome(workers, [0.1], 50, [49.0], (CardHistory("GPU-1", 0, 1 << 30, 2.0, 0.5, (held, held)),))
        verdicts = (
            Finding("success rate", "", "1 of 1", True),
            Finding("balance over cards", "", "not looked at", None),
        )
        return Report(title, plan, ("GPU-1",), verdicts, load, {"all": ""})

    change(stress, "where", lambda spec, speed: Address(Path("/nowhere"), {}, None))
    change(stress, "_cards", lambda address, gpus: Cards(("GPU-1",), ("GPU-1",), {"GPU-1": 1 << 34}, False))
    change(stress, "meter_of", lambda address: None)
    change(stress, "carry_out_plan", carry_out)


def _kube_test(change: Change) -> None:
    change(KubeTest, "run", lambda self: seen(REQUEST, BOTH, PARALLEL))


MODEL = ("--model", "A100-40G")
COMMANDS: dict[str, tuple[tuple[str, ...], Callable[[Change], None]]] = {
    "mission": (("bench", "mission", "--model", "2xT4", "--shorten", "0.01", "--only", "0,2"), _nothing),
    "demo": (("demo",), _demo),
    "swap": (("bench", "swap", *MODEL), _nothing),
    "eviction": (("bench", "eviction", *MODEL), _nothing),
    "compute": (("bench", "compute", "--sim", "H200", "--only", "pairs"), _compute),
    "fairness": (("bench", "fairness", *MODEL, "--tasks", "20+0 20+0", "--seconds", "1"), _nothing),
    "stress": (("stress", "--duration", "1"), _stress),
    "verify": (("verify", "--sim", "H200"), _verify),
    "concurrency": (("verify", "concurrency", *map(str, LOGS)), _nothing),
    "kube-test": (("kube-test", "--skip-setup", "2"), _kube_test),
}


def nvshare(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the JSON and the page of each kind, written by its own command."""
    directory = tmp_path_factory.mktemp("kinds")
    for kind, (arguments, prepare) in COMMANDS.items():
        with pytest.MonkeyPatch.context() as patch:
            prepare(patch.setattr)
            targets = ("--json", directory / f"{kind}.json", "--html", directory / f"{kind}.html")
            code, output = nvshare(*arguments, *targets)
            assert code == 0, (kind, output)
    return directory


def commands_that_write_results() -> set[str]:
    """Those with a --json that names a file."""

    def walk(command: click.Command, name: str) -> Iterator[str]:
        options = [option for option in command.params if "--json" in option.opts]
        if any(isinstance(option, click.Option) and not option.is_flag for option in options):
            yield name
        if isinstance(command, click.Group):
            context = click.Context(command)
            for part in command.list_commands(context):
                found = command.get_command(context, part)
                assert found is not None
                yield from walk(found, f"{name} {part}")

    return set(walk(main, "nvshare"))


def test_every_command_that_writes_a_result_has_a_kind_and_every_kind_a_command() -> None:
    assert commands_that_write_results() == {kind.command for kind in KINDS.values()}
    assert COMMANDS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_command_writes_has_the_form_of_all_and_its_page_again(kind: str, written: Path, tmp_path: Path) -> None:
    content = json.loads((written / f"{kind}.json").read_text())
    assert content["kind"] == kind
    assert {"version", "date", "source", "simulated"} <= content.keys()
    assert {"host", "system"} <= content["machine"].keys()
    assert {"nvshare", "python"} <= content["versions"].keys()
    code, output = nvshare("report", written / f"{kind}.json", "--html", tmp_path / "again.html")
    assert code == 0, output
    assert output.startswith(f"{KINDS[kind].command}: ")
    assert (tmp_path / "again.html").read_bytes() == (written / f"{kind}.html").read_bytes()


def keys(value: Any, way: str = "") -> set[str]:
    """The paths of all keys, with the entries of a list as one."""
    if isinstance(value, dict):
        inner = [(f"{way}.{key}" if way else key, entry) for key, entry in value.items()]
        return {path for path, _ in inner}.union(*(keys(entry, path) for path, entry in inner))
    return set().union(*(keys(entry, f"{way}[]") for entry in value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_has_the_keys_of_its_version(kind: str, written: Path) -> None:
    recorded = json.loads((DATA / "result_keys.json").read_text())
    assert sorted(keys(json.loads((written / f"{kind}.json").read_text()))) == recorded[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_two_results_of_a_kind_are_compared(kind: str, written: Path, tmp_path: Path) -> None:
    same = tmp_path / "same.json"
    same.write_bytes((written / f"{kind}.json").read_bytes())
    code, output = nvshare("report", written / f"{kind}.json", same)
    assert code == 0, output
    assert "better: 0, worse: 0, the same: " in output
    assert "the same: 0" not in output


def test_results_of_different_kinds_are_refused_in_one_line(written: Path) -> None:
    for one, other in itertools.pairwise(KINDS):
        code, output = nvshare("report", written / f"{one}.json", written / f"{other}.json")
        assert (code, output.count("\n")) == (2, 1), output
        assert output == (
            f"[NVSHARE][FATAL]: {one} is of {KINDS[one].command}, {other} of {KINDS[other].command}: "
            "compare two of a kind\n"
        )


def test_results_without_a_common_figure_are_refused_in_one_line(written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    content = json.loads((written / "verify.json").read_text())
    content["rows"][0]["check"] = "another"
    other.write_text(json.dumps(content))
    code, output = nvshare("report", written / "verify.json", other)
    assert (code, output.count("\n")) == (2, 1)
    assert "verify and other have no figure in common" in output


def leaves(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every place of a result."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(*way, key) for key, _ in inner] + [path for key, entry in inner for path in leaves(entry, (*way, key))]


WRONG: tuple[object, ...] = (None, True, 0, -1, 1e300, 10**30, -0.5, "", "text", [], [0], [[0.0, 0.0]], {}, {"a": 1})


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_result_is_drawn_or_refused_but_never_a_crash(kind: str, written: Path) -> None:
    whole = json.loads((written / f"{kind}.json").read_text())
    if "rows" in whole:  # the first and the last say all that there is to say
        whole["rows"] = whole["rows"][:1] + whole["rows"][-2:]
    source = random.Random(kind)
    for path in source.sample(ways := leaves(whole), min(60, len(ways))):
        for value in source.sample(WRONG, 5):
            damaged = copy.deepcopy(whole)
            address: Any = damaged
            for step in path[:-1]:
                address = address[step]
            address[path[-1]] = value
            with contextlib.suppress(NotAResult):
                result = recognised(json.loads(json.dumps(damaged)))
                assert result_page(result).endswith("</html>\n")
                assert comparison_page(compared(result, result, 0.05)).endswith("</html>\n")
