"""What several calls of the campaign found, as one set of results: a file per subject, ready to be kept.

    python -m nvshare.bench.gpu.merge DIR... --into DIR

Parts of one subject become one file: frameworks.json and compute.json. Of a part that was run more than once, the last
run that came to its end counts, else the last one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvshare.bench.gpu.campaign import DONE, EARLIER, SKIPPED, SUMMARY

SUBJECTS = {
    "frameworks": ("switching", "alone"),
    "compute": ("quotas", "pairs", "free"),
    "workers": ("stress", "pool"),
    "fairness": ("fairness", "training"),
}
Content = dict[str, Any]


def merge(directories: Sequence[Path], into: Path) -> Content:
    """Writes the results, and tells what they come to, as a campaign does."""
    parts: dict[str, tuple[Content, Path]] = {}
    lines: dict[str, list[Content]] = {}
    summary: Content = {}
    for directory in directories:
        summary = json.loads((directory / SUMMARY).read_text())
        for entry in summary["parts"]:
            name = entry["part"]
            known = parts.get(name)
            if entry["state"] == SKIPPED or (known and not _better(entry["state"], known[0]["state"])):
                continue
            parts[name] = (entry, directory)
            lines[name] = [line for line in summary["lines"] if line["part"] == name]
    into.mkdir(parents=True, exist_ok=True)
    _write_results({name: directory / f"{name}.json" for name, (_, directory) in parts.items()}, into)
    whole = {
        **summary,
        "parts": [entry for entry, _ in parts.values()],
        "lines": [line for found in lines.values() for line in found],
    }
    (into / SUMMARY).write_text(json.dumps(whole, indent=1) + "\n")
    return whole


def _better(state: str, before: str) -> bool:
    """Whether a later run of a part counts in the place of one before; what was done earlier is that one."""
    return state == DONE or (state != EARLIER and before not in (DONE, EARLIER))


def _write_results(files: dict[str, Path], into: Path) -> None:
    subject_of = {part: subject for subject, members in SUBJECTS.items() for part in members}
    found: dict[str, list[Content]] = {}
    for name, file in files.items():
        if file.exists():
            found.setdefault(subject_of.get(name, name), []).append(json.loads(file.read_text()))
    for subject, contents in found.items():
        (into / f"{subject}.json").write_text(json.dumps(_together(contents), indent=1) + "\n")


def _together(contents: Sequence[Content]) -> Content:
    """The rows of all; what is said once is what the last one says, and all must be complete for the whole to be."""
    whole: Content = {}
    for content in contents:
        whole |= content
    whole["rows"] = [row for content in contents for row in content["rows"]]
    if "complete" in whole:
        whole["complete"] = all(content.get("complete") for content in contents)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="what --json named, in order of time")
    parser.add_argument("--into", type=Path, required=True, help="where the results go")
    options = parser.parse_args(arguments)
    lines = merge(options.directories, options.into)["lines"]
    failed = [f"{line['issue']} {line['what']}" for line in lines if line["ok"] is False]
    print(f"{len(lines) - len(failed)} of {len(lines)} lines are as promised or only reported")
    for name in failed:
        print(f"not as promised: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
