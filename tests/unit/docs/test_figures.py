"""The README's figures of a real card are those of the results that it links to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nvshare.cli import report

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"
README = " ".join((ROOT / "README.md").read_text().split())


def newest(kind: str) -> dict[str, Any]:
    """The newest result of a kind: their names begin with the date."""
    content: dict[str, Any] = json.loads(max(RESULTS.glob(f"*-h200-{kind}.json")).read_text())
    return content


def by_test(kind: str) -> dict[str, dict[str, Any]]:
    return {row["test"]: row for row in newest(kind)["rows"]}


def percents(shares: Sequence[float]) -> list[str]:
    return [f"{100 * share:.1f}" for share in shares]


def spine() -> list[str]:
    rows = by_test("spine")
    add, matmul = (rows[f"alone {name}"] for name in ("add", "matmul"))
    first, second = percents(rows["two together, 4 GiB add"]["shares"])
    alone = [
        f"{row['ratio']:.4f} ({row['spread'][0]:.4f} to {row['spread'][1]:.4f}) | {row['native_native']:.4f}"
        for row in (add, matmul)
    ]
    return [*alone, f"{first} and {second} % of solo"]


def workers() -> list[str]:
    told = [(row["test"], row["delivered"]) for row in newest("workers")["rows"] if "pool of 4" in row["test"]]
    add, matmul = ([delivered for test, delivered in told if kind in test] for kind in ("add", "matmul"))
    return [f"`add` {min(add):.1f} to {max(add):.1f} %, matmul {min(matmul):.1f} to {max(matmul):.1f} %"]


def swap() -> list[str]:
    rows = by_test("swap")
    pair, whole = rows["two 12 GiB tasks on 16 GiB"], rows["whole 12 GiB sets change places"]
    again = rows["an idle task computes again"]["seconds"]
    checked, unified = rows["100 switches with checksums"], rows["two 12 GiB tasks on 16 GiB, unified memory"]
    return [
        f"both done after {pair['ratio']:.2f} × solo, sums right; {pair['out_gib']:.2f} GiB each way per switch",
        f"{whole['stall_s']:.3f} s: {whole['stall_ratio']:.2f} × the limit of the link",
        f"sum of speeds {rows['three 7 GiB tasks on 16 GiB']['sum_of_speeds']:.3f} of solo",
        f"after {min(again):.3f} to {max(again):.3f} s",
        f"{checked['wrong']} of {checked['checks']} checks wrong",
        f"{unified['out_gib']:.2f} GiB per switch in {unified['stall_s']:.2f} s, {100 * unified['of_limit']:.0f} %",
    ]


def compute() -> list[str]:
    rows = newest("compute")["rows"]
    free = {(row["what"], row["how"]): row["figures"]["sum"] for row in rows if row["part"] == "free"}
    names = {"2 x add": "2 `add`", "3 x add": "3 `add`", "2 x matmul": "2 matmul", "3 x matmul": "3 matmul"}
    ways = ("nvshare", "native", "concurrent", "mps")
    told = [
        f"| {name} | {' | '.join(f'{share} %' for share in percents([free[what, way] for way in ways]))} |"
        for what, name in {**names, "add + matmul": "`add` + matmul"}.items()
    ]
    alone = [row for row in rows if row["part"] == "quotas" and row["how"] == "nvshare"]
    launches = [row["error_points"] for row in alone if row["what"] == "launch-bound alone"]
    kernels = [row["error_points"] for row in alone if row["what"] != "launch-bound alone"]
    pairs = [row for row in rows if row["part"] == "pairs" and row["how"] == "nvshare"]
    worst = max(row["error_points"] for row in pairs)
    low, high = percents([min(row["of_allowed"] for row in pairs), max(row["of_allowed"] for row in pairs)])
    beside = next(row for row in rows if row["what"] == "add + launch-bound" and row["how"] == "nvshare")
    kept = [got / had for got, had in zip(beside["delivered"], beside["figures"]["native"], strict=True)]
    above = next(row["figures"]["most_above_points"] for row in rows if "random changes" in row["what"])
    return [
        *told,
        f"at 10 to 90 % are at most {max(kernels)} points off",
        f"a launch-bound task at 25, 50 and 75 % at most {max(launches)}",
        f"({len(pairs)} rows) at most {worst} points, sums {low} to {high} % of what quotas allow",
        f"none above its quotas by more than {above} points",
        f"had {kept[0]:.3f} of what it has natively, the other {kept[1]:.3f}",
    ]


def frameworks() -> list[str]:
    rows = by_test("frameworks")
    alone, launches = rows["alone, mean of all"], rows["a million launches from C"]
    least, most = launches["added_interval"]
    quota = rows["quota torch"]
    return [
        f"speed / native is {alone['ratio']:.4f} in the mean of the {alone['of']} whose native runs agree",
        f"{launches['added_us']:.2f} µs more ({least:.2f} to {most:.2f}) than the native {launches['native_us']:.1f}",
        f"freed {rows['ten tasks allocate and free']['allocations']:,} times under quotas",
        f"its own `{quota['error']}` at {quota['reached_mib']} MiB, sees a card of {quota['total_mib']} MiB",
    ]


@pytest.mark.parametrize("told", [spine, swap, workers, compute, frameworks], ids=lambda told: told.__name__)
def test_the_readme_says_what_was_measured(told: Any) -> None:
    missing = [phrase for phrase in told() if phrase not in README]
    assert missing == []


def test_the_kept_report_of_verify_shows_the_other_ways_to_share_beside_it() -> None:
    result = CliRunner().invoke(report.command, [str(max(RESULTS.glob("*-h200-verify.json")))])
    assert result.exit_code == 0, result.output
    rows = {row["how"]: row["delivered"] for row in newest("verify")["compare"]}
    assert set(rows) == {"native", "nvshare", "concurrent", "mps"}
    shown = [line.split() for line in result.output.splitlines() if "2 x add" in line]
    assert [line[-3] for line in shown] == percents(list(map(sum, rows.values())))
