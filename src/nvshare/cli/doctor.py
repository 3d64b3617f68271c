"""``nvshare doctor``: what keeps this machine from sharing its GPUs, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nvshare import __version__, native
from nvshare.cli.options import PlainCommand, Seconds, fail
from nvshare.doctor.facts import Facts
from nvshare.doctor.findings import Finding, State, exit_code, worst
from nvshare.doctor.gather import PATIENCE, gather
from nvshare.doctor.judge import judge
from nvshare.gpu import sim

_STYLES = {State.OK: "green", State.NOTE: "cyan", State.WARNING: "yellow", State.PROBLEM: "bold red"}


def findings_table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("STATE", "CHECK", "SEEN, AND WHAT TO DO"):
        table.add_column(column, no_wrap=column != "SEEN, AND WHAT TO DO", overflow="fold")
    for finding in findings:
        state = Text(finding.state.word, style=_STYLES[finding.state])
        table.add_row(state, Text(finding.check), Text(finding.seen))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}", style="italic"))
    return table


def summary(findings: list[Finding]) -> str:
    counts = Counter(finding.state for finding in findings)
    parts = [_count(counts[state], state.word) for state in (State.PROBLEM, State.WARNING, State.NOTE) if counts[state]]
    return ", ".join(parts) or "all is well"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def as_json(facts: Facts | None, findings: list[Finding]) -> dict[str, Any]:
    return {
        "release": __version__,
        "worst": worst(findings).word,
        "findings": [{**dataclasses.asdict(finding), "state": finding.state.word} for finding in findings],
        "facts": dataclasses.asdict(facts) if facts is not None else None,
    }


def _node_variables(spec: str | None) -> dict[str, str]:
    if spec is None:
        return {}
    try:
        return sim.find(spec).env()
    except sim.SimError as error:
        fail(f"{error}; make it with: nvshare sim up {spec}", 2)


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "to_json", is_flag=True, help="Findings and all that was seen, as JSON; good in a bug report.")
@click.option("--sim", "spec", metavar="NODE", help="Look at this simulated node, which must be up.")
@click.option(
    "--timeout",
    type=Seconds(min=0.1, max=600),
    default=PATIENCE,
    show_default=True,
    help="How long the driver may take to answer.",
)
def command(to_json: bool, spec: str | None, timeout: float) -> None:
    """Find out what keeps this machine from sharing its GPUs, and what to do about it.

    \b
    nvshare doctor
    nvshare doctor --json > doctor.json
    nvshare doctor --sim 2xT4

    Looks at the driver, the cards, the library, the scheduler and the limits around them, from where a task would:
    run it in the shell, container or pod that has the trouble. Nothing is changed, and no memory of a card is taken.

    \b
    Exit code by the worst finding:
      0   all is well, or only notes
      1   a warning: sharing works, but not as well or not for everything
      2   a problem: sharing does not work here
    """
    facts: Facts | None = None
    try:
        facts = gather(_node_variables(spec), timeout)
        findings = judge(facts)
    except native.NativeMissing as error:  # the simulated driver too: there is nothing to look at
        findings = [Finding("library", State.PROBLEM, str(error), "build it (make native), or install nvshare again")]
    if to_json:
        click.echo(json.dumps(as_json(facts, findings), indent=2))
    else:
        console = Console(highlight=False)
        console.print(f"nvshare {__version__} doctor")
        console.print(findings_table(findings))
        console.print(summary(findings))
    raise SystemExit(exit_code(findings))
