"""The parts of a campaign: what each runs, how long that takes on an H200, and which lines of the table come of it.

Criteria are not repeated here: a row says by its ``ok`` whether it is as promised; the script that made it knows why
(README.md). A line is as promised when all its rows are there and all of them are.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvshare.bench.compute.bench import scene_seconds
from nvshare.bench.compute.kinds import BURSTY, IRREGULAR
from nvshare.bench.compute.rows import BESIDE_BURSTS, BUSY_SUM
from nvshare.bench.compute.scenarios import ALONE, BESIDE, INTERACTIVE_ROWS, MIXES, TOGETHER, title
from nvshare.bench.compute.stage import HIGH
from nvshare.bench.fairness import live as fairness_live
from nvshare.bench.fairness import training
from nvshare.bench.fairness.rows import (
    CARD_RATIO,
    CARD_SUM,
    SUM_RATIO,
    TABLE_PART,
    TRAINING,
    USUAL_RATIO,
    USUAL_SUM,
    WORST_RATIO,
)
from nvshare.bench.fairness.tasks import RANDOM, TABLE
from nvshare.bench.gpu.frameworks.quota import QUOTED
from nvshare.bench.gpu.frameworks.tasks import FRAMEWORKS, LINKED
from nvshare.bench.gpu.frameworks.worker import SHARING
from nvshare.bench.gpu.launching import WORKERS
from nvshare.bench.gpu.report import Row
from nvshare.client.spawn import LOG_NAME
from nvshare.gpu import sim

SIMULATED_FRAMEWORKS = (LINKED,)  # needs nothing but a driver
CHECKS = 9  # of nvshare verify
_BEGIN = 20.0  # seconds until the processes of a part of bench compute are ready, and until they are gone
_LOG_LINES = 200
FAIRNESS_SETS = 10
_FAIR_SECONDS = (5.0, 1.5)  # of a window, and before it; at most
_ERROR = 90  # characters of what went wrong


def rows_of(content: dict[str, Any]) -> list[Row]:
    """All rows of a result, those of a comparison among them as part ``compare``, and what is promised of all rows
    together as part ``promise`` once they are complete. What was measured on what counts as a row too: whoever keeps
    the result wants to know."""
    promised = [{**each, "part": "promise"} for each in content.get("promises", []) if content.get("complete")]
    compared = [{**row, "part": "compare"} for row in content.get("compare", [])]
    about = {"part": "about", "ok": None, **content.get("machine", {}), **content.get("versions", {})}
    return [*content.get("rows", []), *promised, *compared, {**about, "date": content.get("date", about.get("date"))}]


@dataclass(frozen=True)
class Line:
    """One line of what is to be shown: so many rows that are ``wanted``, all of them as promised; or only ``there``."""

    issue: str
    what: str
    asked: str
    wanted: Callable[[Row], bool]
    seen: Callable[[list[Row]], str]
    count: int = 1
    there: bool = False

    def judge(self, rows: Sequence[Row]) -> tuple[str, bool | None] | None:
        """What was seen and whether it is as promised (None: nothing was promised); None: not known yet."""
        mine = [row for row in rows if self.wanted(row)]
        if len(mine) < self.count:
            return None
        judged = [row["ok"] for row in mine if row["ok"] is not None]
        return self._seen(mine), True if self.there else all(judged) if judged else None

    def cut_short(self, rows: Sequence[Row]) -> tuple[str, bool]:
        """The same when no more rows will come."""
        mine = [row for row in rows if self.wanted(row)]
        return f"{len(mine)} of {self.count} rows{': ' + self._seen(mine) if mine else ''}", False

    def _seen(self, rows: list[Row]) -> str:
        try:
            return self.seen(rows)
        except (KeyError, IndexError, TypeError, ValueError):
            errors = [str(row.get("error") or row.get("note")) for row in rows if row.get("error") or row.get("note")]
            return " ".join("; ".join(errors).split())[:_ERROR] or "rows without figures"


@contextlib.contextmanager
def nowhere(file: Path) -> Iterator[dict[str, str]]:
    """The part finds its own card."""
    yield {}


@dataclass(frozen=True)
class Part:
    """``command`` writes the rows to a file. ``place`` gives the variables of what it runs on, and may add to the file
    afterwards. ``seconds``: what it takes; it is ended after ``limit``."""

    name: str
    about: str
    seconds: float
    command: Callable[[Path], Sequence[object]]
    lines: Sequence[Line]
    place: Callable[[Path], AbstractContextManager[dict[str, str]]] = field(default=nowhere)

    @property
    def limit(self) -> float:
        return 1.4 * self.seconds + 20


# --- lines


def named(test: str) -> Callable[[Row], bool]:
    return lambda row: row.get("test") == test


def beginning(test: str) -> Callable[[Row], bool]:
    return lambda row: str(row.get("test", "")).startswith(test)


def shown(*names: str) -> Callable[[list[Row]], str]:
    """These figures of the first row."""
    return lambda rows: ", ".join(f"{name} {rows[0][name]}" for name in names)


def figures(issue: str, what: str, asked: str, names: str, test: str = "") -> Line:
    """These figures of the row of ``test``, which is called ``what`` unless said otherwise."""
    return Line(issue, what, asked, named(test or what), shown(*names.split()))


SPINE = [
    *(
        figures(
            "2.7",
            f"PyTorch {name} alone",
            "ratio >= 0.99, native/native beside",
            "ratio spread native_native",
            f"alone {name}",
        )
        for name in ("add", "matmul")
    ),
    figures(
        "2.7",
        "two 4 GiB PyTorch tasks",
        "right; status: both, bytes, busy time",
        "right shares drops",
        "two together, 4 GiB add",
    ),
]

SWAP = [
    figures(
        "3.5",
        "two 12 GiB tasks on 16 GiB",
        "right, deficit only, >= 0.80 of link, <= 2.06",
        "ratio of_limit largest_gib most_gib right",
    ),
    figures(
        "3.5", "whole 12 GiB sets exchanged", "<= 1.3 x limit", "stall_ratio right", "whole 12 GiB sets change places"
    ),
    figures("3.5", "three 7 GiB tasks on 16 GiB", "sum of speeds >= 0.96", "sum_of_speeds right"),
    figures(
        "3.5",
        "an idle task computes again",
        "<= 1.2 x bytes / bandwidth + 30 ms",
        "beyond_1.2_of_link_ms missing_gib right",
    ),
    Line(
        "3.5",
        "100 switches with checksums",
        ">= 100 switches, 0 wrong",
        lambda row: str(row.get("test", "")).endswith("switches with checksums"),
        shown("switches", "checks", "wrong"),
    ),
    figures(
        "3.5",
        "unified memory in the same table",
        "right",
        "ratio of_limit right",
        "two 12 GiB tasks on 16 GiB, unified memory",
    ),
]


def switching(names: Sequence[str]) -> list[Line]:
    return [
        figures(
            "4.1",
            f"{name} switched out and in",
            ">= 20 times right, 2 MiB off at most, gated",
            "switched_out wrong accounting_off_bytes held_back same_as_native",
            f"switching {name}",
        )
        for name in names
    ]


def memory(simulated: bool) -> list[Line]:
    drift = Line(
        "4.3",
        "ten tasks at quotas, two minutes",
        "no drift between accounting and NVML",
        named("ten tasks allocate and free"),
        lambda rows: f"{max(map(abs, rows[0]['drift_bytes']))} bytes, {rows[0]['allocations']} allocations",
    )
    if simulated:
        return [drift]
    return [
        drift,
        *(
            figures(
                "4.3",
                f"{name} at 4 GiB",
                "its own error there, sees 4 GiB, recovers",
                "error reached_mib total_mib recovered",
                f"quota {name}",
            )
            for name in QUOTED
        ),
        Line(
            "4.4",
            "two ranks of one job, a third task",
            "no deadlock in 200 rounds",
            beginning("two ranks beside a third task"),
            lambda rows: "; ".join(f"{row['rounds']} rounds, {row['switches']} switches" for row in rows),
            count=2,
        ),
        *(
            figures(
                "4.1",
                f"memory sent by {name.removesuffix('-sharing')} to another process",
                ">= 20 switches of both, 0 wrong",
                "switched_out swapped_in_gib pinned_mib nvml_beyond_mib wrong",
                f"ipc {name}",
            )
            for name in SHARING
        ),
    ]


def alone(names: Sequence[str]) -> list[Line]:
    each = [
        figures(
            "4.2",
            f"{name} alone",
            ">= 0.99, or within native/native",
            "ratio interval native_interval",
            f"alone {name}",
        )
        for name in names
    ]
    mean = figures("4.2", "mean over frameworks", ">= 0.995", "ratio of", "alone, mean of all")
    launches = figures("4.2", "a million launches from C", "<= 0.2 us added", "added_us native_us")
    return [*each, *([mean] if len(names) > 1 else []), launches]


def of_compute(part: str, what: Callable[[str], bool]) -> Callable[[Row], bool]:
    return lambda row: row.get("part") == part and row.get("how") == "nvshare" and what(row["what"])


def worst_quota(rows: list[Row]) -> str:
    worst = max(rows, key=lambda row: row["error_points"])
    quotas = "/".join(map(str, worst["quotas"]))
    least = min(row["of_allowed"] for row in rows)
    bad = sum(not row["ok"] for row in rows)
    return f"worst {worst['error_points']:.2f} points at {quotas}, sum >= {least:.3f}; {bad} of {len(rows)} fail"


def quotas() -> list[Line]:
    return [
        Line(
            "5.1",
            f"{kind} alone at {', '.join(map(str, wanted))} %",
            "2 points" if kind == "launch-bound" else "1 point, sum >= 0.98",
            of_compute("quotas", f"{kind} alone".__eq__),
            worst_quota,
            count=len(wanted),
        )
        for kind, wanted in ALONE.items()
    ]


def _titles(mix: Sequence[str]) -> set[str]:
    return {title([mix[place % len(mix)] for place in range(len(wanted))]) for wanted in TOGETHER}


def pairs() -> list[Line]:
    return [
        Line(
            "5.1",
            f"{' and '.join(mix)}: pairs, three, four",
            "1 point each, sum >= 0.98",
            of_compute("pairs", _titles(mix).__contains__),
            worst_quota,
            count=len(TOGETHER),
        )
        for mix in MIXES
    ]


def _step(alone: bool) -> Line:
    return Line(
        "5.4",
        f"quota changes, {'add alone' if alone else 'matmul beside add'}",
        "shown within 300 ms",
        of_compute("change", lambda what: "quota changes" in what and ("alone" in what) == alone),
        lambda rows: f"{rows[0]['figures']['shown_after_ms']} ms",
    )


def change() -> list[Line]:
    storm = Line(
        "5.4",
        "200 random changes in 60 s, four tasks",
        "none stuck, none above by 1 point",
        of_compute("change", lambda what: "random changes" in what),
        lambda rows: "above by {most_above_points} points, pauses {longest_pauses_ms} ms".format(**rows[0]["figures"]),
    )
    return [_step(alone=True), _step(alone=False), storm]


def _free(what: str, all_ways: bool) -> Callable[[Row], bool]:
    """The rows of these tasks; where MPS is not to be had, the row that says so stands for all of its own."""
    without_mps = "all" if all_ways else ""
    return lambda row: row.get("part") == "free" and row["what"] in (what, without_mps)


def _ways(rows: list[Row]) -> str:
    ways = [f"{row['how']} {row['figures']['sum']:.3f}" if row["delivered"] else f"no {row['how']}" for row in rows]
    (ours,) = [row for row in rows if row["how"] == "nvshare"]
    if "spread" in ours["figures"]:
        return f"{', '.join(ways)}; spread {ours['figures']['spread']:.1%}"
    return f"{', '.join(ways)}; {ours['delivered']} against {ours['figures']['native']}"


def free() -> list[Line]:
    lines = []
    for kinds in BESIDE:
        what, busy = title(kinds), "launch-bound" not in kinds
        asked, count = f"sum >= {BUSY_SUM:g}, equal to 2 %; other ways beside", 4
        if not busy:
            asked, count = "none worse than natively by 2 %", 2
        if set(kinds) == {"launch-bound"}:
            asked = ">= 0.97 of natively side by side"
        lines.append(Line("5.2", f"{what}, no quotas", asked, _free(what, busy), _ways, count))
    return lines


def _bursts(what: str, how: str) -> Callable[[Row], bool]:
    return lambda row: row.get("part") == "idle" and (row["what"], row["how"]) == (what, how)


def _p99(rows: list[Row]) -> str:
    return "p99 {p99_times_solo} x solo of {bursts} bursts, neighbour {neighbour}".format(**rows[0]["figures"])


def idle() -> list[Line]:
    sleepers = [
        Line(
            "5.3",
            f"three {kind} tasks",
            "each <= 1.01 of solo" if kind == BURSTY else "reported",
            of_compute("idle", title((kind,) * 3).__eq__),
            lambda rows: f"{rows[0]['figures']['times_solo']}",
        )
        for kind in (BURSTY, IRREGULAR)
    ]
    interactive = []
    for busy, how, priority, at_most in INTERACTIVE_ROWS:
        what = f"interactive{', high priority' if priority == HIGH else ''} beside {busy}"
        asked = "reported" if at_most is None else f"p99 <= {at_most:g} x solo, neighbour >= {BESIDE_BURSTS:g}"
        interactive.append(Line("5.3", f"{what}, {how}", asked, _bursts(what, how), _p99))
    return [*sleepers, *interactive]


def _of_attainable(rows: list[Row]) -> str:
    measured = [row for row in rows if row["got"]]
    worst = min(measured, key=lambda row: row["worst_ratio"])
    least = min(row["sum_ratio"] for row in measured)
    bad = sum(row["ok"] is False for row in rows)
    return f"worst {worst['worst_ratio']:.3f} of {worst['what']}, sum >= {least:.3f}; {bad} of {len(rows)} fail"


def _of_part(part: str) -> Callable[[Row], bool]:
    return lambda row: row.get("part") == part


def fairness(simulated: bool) -> list[Line]:
    asked = f"each >= {CARD_RATIO:.2f} of attainable, sum >= {CARD_SUM:.2f} of native"
    together, promises = "whoever lacks gains, caps within 3 points, model within 5", 5
    if simulated:
        asked = f"each >= {WORST_RATIO:.2f} of attainable, sum >= {SUM_RATIO:.2f}"
        together, promises = f"each >= {USUAL_RATIO:.2f} in most, sum >= {USUAL_SUM:.2f} in the median", 4
    return [
        Line("5.5", "fixed sets that think", asked, _of_part(TABLE_PART), _of_attainable, len(TABLE)),
        Line("5.5", "random sets that think", asked, _of_part(RANDOM), _of_attainable, FAIRNESS_SETS),
        Line(
            "5.5",
            "all sets that think",
            together,
            _of_part("promise"),
            lambda rows: ", ".join(row["seen"] for row in rows),
            promises,
        ),
    ]


def trained() -> list[Line]:
    return [
        Line(
            "5.5",
            "training beside add",
            f"each >= {CARD_RATIO:.2f} of attainable",
            _of_part(TRAINING),
            _shares_of_training,
            training.SETS,
        ),
    ]


def _shares_of_training(rows: list[Row]) -> str:
    return "; ".join(f"{row['what']}: {row['got']} of {row['attainable']}, native {row['native']}" for row in rows)


STRESS = [
    *(
        Line("6.4", what, "passes", named(test), lambda rows: f"code {rows[0]['code']}, {rows[0]['verdicts']}")
        for what, test in (
            ("nvshare stress --workers 8", "stress"),
            ("test_gpu_allocation.py", "test_gpu_allocation.py"),
        )
    )
]
IN_A_POOL = [
    *(
        Line(
            "6.4",
            f"GpuPool of {WORKERS} at 20 %, {kind}",
            "right, within 2 points",
            beginning(f"pool of {WORKERS}, {kind}, worker"),
            lambda rows: f"{[row['delivered'] for row in rows]}, right {all(row['right'] for row in rows)}",
            count=WORKERS,
        )
        for kind in ("add", "matmul")
    )
]


def verify() -> list[Line]:
    return [
        Line(
            "8.5",
            "nvshare verify",
            "passes",
            lambda row: "check" in row,
            lambda rows: ", ".join(row["check"] for row in rows if row["ok"] is False) or f"{len(rows)} checks",
            CHECKS,
        ),
        Line(
            "8.5",
            "native, time-slicing, MPS beside it",
            "figures of the same run",
            lambda row: row.get("part") == "compare",
            _ways,
            4,
            there=True,
        ),
        Line(
            "8.5",
            "date, driver and versions kept",
            "in the report",
            lambda row: row.get("part") == "about" and all(row.get(name) for name in ("date", "driver", "nvshare")),
            shown("date", "driver", "nvshare"),
            there=True,
        ),
    ]


# --- parts


def _python(*words: object) -> Callable[[Path], list[object]]:
    return lambda path: [sys.executable, "-m", *words, "--json", path]


def _gpu(module: str, *words: object) -> Callable[[Path], list[object]]:
    return _python(f"nvshare.bench.gpu.{module}", *words)


def _compute(seconds: float, simulated: bool, *names: str) -> Callable[[Path], list[object]]:
    where = ("--sim", "H200") if simulated else ("--real",)
    return _python("nvshare", "bench", "compute", *where, "--only", ",".join(names), "--seconds", seconds)


@contextlib.contextmanager
def own_scheduler(file: Path) -> Iterator[dict[str, str]]:
    """The part starts a scheduler on a socket of ours; what that said last is kept beside the rows."""
    with tempfile.TemporaryDirectory(prefix="nvs-") as directory:
        socket = Path(directory) / "scheduler.sock"
        yield {"NVSHARE_SOCK": str(socket)}
        log = socket.with_name(LOG_NAME)
        if file.exists() and log.exists():
            content = json.loads(file.read_text())
            content["scheduler_log"] = log.read_text().splitlines()[-_LOG_LINES:]
            file.write_text(json.dumps(content, indent=1) + "\n")


def _scenes(seconds: float, simulated: bool, *names: str) -> float:
    return sum(scene_seconds(name, seconds, not simulated) for name in names)


@contextlib.contextmanager
def simulated_card(file: Path) -> Iterator[dict[str, str]]:
    """A simulated node for programs that take what the environment names."""
    with sim.held("1xA100-40G", 1.0, f"campaign-{os.getpid()}") as node:
        yield {**node.env(), "NVSHARE_HOST_MEMORY": "1TiB"}


def parts_for(simulated: bool, seconds: float = 8.0) -> list[Part]:
    """In the order of their weight. ``seconds``: of a measured window."""
    begin = 8.0 if simulated else _BEGIN
    place = nowhere if simulated else own_scheduler

    def compute(name: str, about: str, lines: list[Line], *of: str, starts: int = 1) -> Part:
        takes = _scenes(seconds, simulated, *of) + starts * begin
        return Part(name, about, takes, _compute(seconds, simulated, *of), lines, place)

    return [
        compute("quotas", "each workload alone at its quotas", quotas(), "quotas"),
        compute("pairs", "quotas of two, three and four; changes", [*pairs(), *change()], "pairs", "change"),
        compute(
            "free", "without quotas; mostly idle and interactive tasks", [*free(), *idle()], "free", "idle", starts=2
        ),
        *fairness_parts(simulated, seconds),
        *(_simulated_others() if simulated else _real_others()),
    ]


def fairness_parts(simulated: bool, seconds: float) -> list[Part]:
    """Tasks that think, and training where there is a real card."""
    window, warm_up = (min(each, seconds) for each in _FAIR_SECONDS)
    where = ("--sim", "H200") if simulated else ()
    times = ("--seconds", window, "--warm-up", warm_up)
    bench = ("nvshare", "bench", "fairness", *where, *times)
    place = nowhere if simulated else own_scheduler
    once = window + warm_up + fairness_live.SETTLING
    ways, begin = (2, "simulated") if simulated else (3, "gpu")
    parts = [
        Part(
            "fairness",
            "what tasks that think get of what they could get",
            (len(TABLE) + FAIRNESS_SETS) * ways * once + fairness_live.BEGIN_SECONDS[begin],
            _python(*bench, "--table", "--sets", FAIRNESS_SETS),
            fairness(simulated),
            place,
        )
    ]
    if not simulated:
        takes = training.SETS * 2 * once + len(training.PAIRS) * training.BEGIN_SECONDS
        about = "a training beside a busy task, by the card's time"
        parts.append(Part("training", about, takes, _python(*bench, "--training"), trained(), place))
    return parts


def _real_others() -> list[Part]:
    return [
        Part("swap", "tasks that do not fit, against the link", 155, _gpu("swap"), SWAP),
        Part(
            "switching",
            "every framework in turns; quotas, drift, ranks, IPC",
            175,
            _gpu("frameworks", "--only", "switching,drift,quota,ranks,ipc"),
            [*switching(FRAMEWORKS), *memory(simulated=False)],
        ),
        Part(
            "alone",
            "every framework alone, and a launch",
            140,
            _gpu("frameworks", "--only", "launches,alone"),
            alone(FRAMEWORKS),
        ),
        Part("stress", "the stress test by both names", 80, _gpu("launching", "--only", "allocation,stress"), STRESS),
        Part("pool", "workers at a quota each", 52, _gpu("launching", "--only", "pool"), IN_A_POOL),
        Part("spine", "what it costs alone, two side by side", 65, _gpu("overhead", "--only", "alone,together"), SPINE),
        Part(
            "verify",
            "the acceptance of a node, beside native and MPS",
            60,
            _python("nvshare", "verify", "--compare"),
            verify(),
        ),
    ]


def _simulated_others() -> list[Part]:
    only = ("--with", ",".join(SIMULATED_FRAMEWORKS))
    return [
        Part(
            "swap",
            "tasks that do not fit, against the link",
            150,
            _gpu("swap", "--only", "pair,wake,many,whole,three"),
            SWAP[:-1],
            simulated_card,
        ),
        Part(
            "spine",
            "what it costs alone, two side by side",
            60,
            _gpu("overhead", "--only", "alone,together"),
            SPINE,
            simulated_card,
        ),
        Part(
            "switching",
            "a C program in turns; drift",
            150,
            _gpu("frameworks", "--only", "switching,drift", *only),
            [*switching(SIMULATED_FRAMEWORKS), *memory(simulated=True)],
            simulated_card,
        ),
        Part(
            "alone",
            "a C program alone, and a launch",
            60,
            _gpu("frameworks", "--only", "launches,alone", *only),
            alone(SIMULATED_FRAMEWORKS),
            simulated_card,
        ),
        Part(
            "stress",
            "the stress test by both names",
            130,
            _gpu("launching", "--sim", "1xT4", "--only", "allocation,stress"),
            STRESS,
        ),
        Part("pool", "workers at a quota each", 60, _gpu("launching", "--sim", "1xT4", "--only", "pool"), IN_A_POOL),
        Part(
            "verify",
            "the acceptance of a node, beside native",
            75,
            _python("nvshare", "verify", "--compare", "--sim", "2xT4"),
            verify(),
        ),
    ]
