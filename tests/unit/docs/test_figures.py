"""The README's figures of a real card are those of the results that it links to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"
README = " ".join((ROOT / "README.md").read_text().split())


def newest(kind: str) -> dict[str, Any]:
    """The newest result of a kind: their names begin with the date."""
    content: dict[str, Any] = json.loads(max(RESULTS.glob(f"*-h200-{kind}.json")).read_text())
    return content


def by_test(kind: str) -> dict[str, dict[str, Any]]:
    return {row["test"]: row for row in newest(kind)["rows"]}


def spine() -> list[str]:
    rows = by_test("spine")
    add, matmul, tiny = (rows[f"alone {name}"] for name in ("add", "matmul", "tiny"))
    first, second = rows["two together, 4 GiB add"]["shares"]
    quota = rows["memory quota 1Gi"]
    return [
        f"{add['ratio']:.4f} ({add['spread'][0]:.4f} to {add['spread'][1]:.4f}) | {add['native_native']:.4f}",
        f"{matmul['ratio']:.4f} ({matmul['spread'][0]:.4f} to {matmul['spread'][1]:.4f})",
        f"{tiny['ratio']:.4f} ({tiny['spread'][0]:.2f} to {tiny['spread'][1]:.2f}) | {tiny['native_native']:.4f}",
        f"{first:.1%} and {second:.1%} of solo".replace("% and", " and").replace("%", " %"),
        f"its own `{quota['error']}` at {quota['reached_mib']} MiB, sees a card of {quota['total_mib']} MiB",
    ]


def swap() -> list[str]:
    rows = by_test("swap")
    pair, whole = rows["two 12 GiB tasks on 16 GiB"], rows["whole 12 GiB sets change places"]
    first, *again = rows["an idle task computes again"]["seconds"]
    checked, unified = rows["100 switches with checksums"], rows["two 12 GiB tasks on 16 GiB, unified memory"]
    return [
        f"both done after {pair['ratio']:.2f} × solo, sums right; {pair['out_gib']:.2f} GiB each way per switch",
        f"{whole['stall_s']:.3f} s: {whole['stall_ratio']:.2f} × the limit of the link",
        f"sum of speeds {rows['three 7 GiB tasks on 16 GiB']['sum_of_speeds']:.3f} of solo",
        f"after {min(again):.3f} to {max(again):.3f} s (the first time {first:.3f})",
        f"{checked['wrong']} of {checked['checks']} checks wrong",
        f"{unified['out_gib']:.2f} GiB per switch in {unified['stall_s']:.2f} s, {100 * unified['of_limit']:.0f} %",
    ]


def compute() -> list[str]:
    rows = newest("compute-second")["rows"]
    free = {(row["what"], row["how"]): f"{row['figures']['sum']:.1%}" for row in rows if row["part"] == "free"}
    two, three = (
        [free[f"{count} x add", how].replace("%", " %") for how in ("nvshare", "native", "mps")] for count in (2, 3)
    )
    told = {
        tuple(row["quotas"]): "/".join(f"{100 * part:.1f}" for part in row["delivered"])
        for row in rows
        if row["part"] == "pairs" and row["what"].endswith("x add")
    }
    return [
        f"together {two[0]} of solo (driver's time-slicing {two[1]}, MPS {two[2]})",
        f"three {three[0]} ({three[1]}, {three[2]})",
        f"30/60 delivers {told[30, 60]}, 80/40 {told[80, 40]}",
        f"30/60/30/60 {told[30, 60, 30, 60]}",
    ]


def frameworks() -> list[str]:
    rows = by_test("frameworks")
    alone, launches = rows["alone, mean of all"], rows["a million launches from C"]
    least, most = launches["added_interval"]
    return [
        f"speed / native is {alone['ratio']:.4f} in the mean of the {alone['of']} whose native runs agree",
        f"{launches['added_us']:.2f} µs longer ({least:.2f} to {most:.2f}) than the native {launches['native_us']:.1f}",
        f"freed {rows['ten tasks allocate and free']['allocations']:,} times under quotas",
    ]


@pytest.mark.parametrize("told", [spine, swap, compute, frameworks], ids=lambda told: told.__name__)
def test_the_readme_says_what_was_measured(told: Any) -> None:
    missing = [phrase for phrase in told() if phrase not in README]
    assert missing == []
