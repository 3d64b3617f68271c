"""Write the framework table of docs/compatibility.md from a result of nvshare.bench.gpu.frameworks.

    python tools/compatibility.py docs/results/2026-11-16-h200-frameworks.json [--check]

``--check`` changes nothing and fails when the table is not what the result says.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- frameworks: begin -->\n", "<!-- frameworks: end -->\n"
NOISE = 0.02  # width of the interval of native against native beyond which it is shown
FEATURES = {
    "torch": "eager, caching allocator",
    "torch-compile": "`torch.compile`",
    "torch-graph": "CUDA graphs",
    "torch-expandable": "expandable segments",
    "torch-async": "`cudaMallocAsync` allocator",
    "torch-loader-fork": "DataLoader workers by fork",
    "torch-loader-spawn": "DataLoader workers by spawn",
    "torch-train": "training loop, deterministic",
    "torch-sharing": "tensors sent between processes (`torch.multiprocessing`)",
    "jax": "default preallocation, jitted training step",
    "cupy": "memory pool, elementwise kernels",
    "numba": "jitted kernels",
    "triton": "kernels on PyTorch's memory",
    "bindings": "driver API from Python",
    "c-linked": "driver API, linked directly",
}


def table(result: dict[str, Any], source: str) -> str:
    """The lines between the marks."""
    rows = {row["test"]: row for row in result["rows"]}
    about = result["machine"]
    gpu = about["gpus"][0].partition(",")[0]
    lines = [
        f"{gpu}, driver {about['driver']}, {result['date']}: [results]({source}).",
        "Each one beside a neighbour on a card declared too small for both. *Same as native*: every loss and",
        "parameter, bit for bit. Alone: speed against native, median of pairs with its 95 % interval.",
        "",
        "| framework | feature | state | moved out and in | alone |",
        "|---|---|---|---|---|",
    ]
    for name, feature in FEATURES.items():
        moved = rows.get(f"switching {name}", rows.get(f"ipc {name}"))
        lines.append(_line(feature, moved, rows.get(f"alone {name}")))
    for row in result["rows"]:
        if row["test"].startswith("quota "):
            lines.append(_quota_line(row))
    return "\n".join(lines) + "\n"


def _line(feature: str, moved: dict[str, Any] | None, alone: dict[str, Any] | None) -> str:
    if moved is None or "error" in moved:
        state = "not run yet" if moved is None else "**fails**: " + " ".join(moved["error"].split())[:120]
        return f"| – | {feature} | {state} | – | {_alone(alone)} |"
    state = "works" if moved["ok"] else "**fails**"
    if moved.get("same_as_native"):
        state += ", same as native"
    times = f"{moved['switched_out']} times, {moved['swapped_in_gib']} GiB, {moved['wrong']} wrong"
    return f"| {moved['version']} | {feature} | {state} | {times} | {_alone(alone)} |"


def _alone(row: dict[str, Any] | None) -> str:
    if row is None or "error" in row:
        return "–"
    low, high = row["interval"]
    text = f"{row['ratio']:.4f} ({low:.4f} to {high:.4f})"
    least, most = row["native_interval"]
    return text if most - least <= NOISE else f"{text}; two native ones: {least:.2f} to {most:.2f}"


def _quota_line(row: dict[str, Any]) -> str:
    name = row["test"].removeprefix("quota ")
    if "error" in row and "reached_mib" not in row:
        return f"| {name} | memory quota 4 GiB | **fails** | – | – |"
    what = f"`{row['error']}` at {row['reached_mib']} MiB, sees {row['total_mib']} MiB, goes on after freeing"
    return f"| {name} | memory quota 4 GiB | {'works' if row['ok'] else '**fails**'}: {what} | – | – |"


def page(text: str, lines: str) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + lines + END + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing, fail when it differs")
    arguments = parser.parse_args()
    source = arguments.result.resolve().relative_to(PAGE.parent).as_posix()
    before = PAGE.read_text()
    after = page(before, table(json.loads(arguments.result.read_text()), source))
    if arguments.check:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
