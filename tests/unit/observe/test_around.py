"""What stands around the metrics: the dashboard, the alerts and their run-books, and the page that names them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvshare.observe.families import FAMILIES
from tools import dashboard

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "chart" / "nvshare"
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
ALERTS = (CHART / "alerts.yaml").read_text()
NAMES = {family.name for family in FAMILIES}


def metrics_in(text: str) -> set[str]:
    return {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"\bnvshare_[a-z_]+", text)}


def test_the_dashboard_is_what_the_script_writes() -> None:
    assert (CHART / "dashboard.json").read_text() == dashboard.text(), "run: make generate"


def test_the_dashboard_and_the_alerts_use_metrics_that_exist() -> None:
    assert metrics_in("\n".join(dashboard.queries())) <= NAMES
    assert metrics_in(ALERTS.replace("nvshare_com_gpu", "")) <= NAMES


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard.dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < dashboard.WIDTH
        taken |= cells


def test_every_alert_has_a_run_book() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    links = re.findall(r"runbook_url: docs/monitoring\.md#(\w+)", ALERTS)
    assert links == [alert.lower() for alert in alerts]
    headings = re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)
    assert set(alerts) == set(headings)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_page_shows_every_metric_as_it_is(family: object) -> None:
    name, kind, labels, text = (getattr(family, field) for field in ("name", "kind", "labels", "help"))
    shown = ", ".join(f"`{label}`" for label in labels) or "–"
    assert f"| `{name}` | {kind} | {shown} | {text} |" in PAGE


def test_the_page_shows_no_metric_that_is_not() -> None:
    assert set(re.findall(r"^\| `(nvshare_\w+)`", PAGE, re.MULTILINE)) == NAMES
