"""The page of a mission run in a real browser: its plots are there, as large as they should be, with the rows' values,
and nothing was asked of any network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nvshare.cli.bench import command as bench

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1100,1600",
)
# Runs inside the page after everything else; what it sees is read from the dumped document. It also points at a mark.
PROBE = """
<script>
addEventListener("load", () => {
  const box = (element) => { const at = element.getBoundingClientRect(); return [at.x, at.y, at.width, at.height]; };
  const bar = document.querySelector('[data-plot="ratio"]');
  bar.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 400, clientY: 300 }));
  const seen = {
    plots: [...document.querySelectorAll("svg")].map(box),
    marks: [...document.querySelectorAll("[data-plot]")].map((mark) => ({ ...mark.dataset, box: box(mark) })),
    fill: getComputedStyle(bar).fill,
    tip: [document.getElementById("tip").textContent, bar.dataset.tip],
    asked: performance.getEntriesByType("resource").map((entry) => entry.name),
    wide: document.documentElement.scrollWidth - innerWidth,
  };
  const told = document.createElement("pre");
  told.id = "probe";
  told.textContent = JSON.stringify(seen);
  document.body.append(told);
});
</script>
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium (Debian) and run again"),
]


@pytest.fixture(scope="module")
def mission(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    directory = tmp_path_factory.mktemp("mission")
    rows, page = directory / "mission.json", directory / "mission.html"
    options = ["--model", "2xT4", "--shorten", "0.01", "--json", str(rows), "--html", str(page)]
    done = CliRunner().invoke(bench, ["mission", *options])
    assert done.exit_code == 0, done.output
    return json.loads(rows.read_text()), page


Browse = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Browse:
    home = tmp_path_factory.mktemp("browser")

    def run(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
        assert BROWSER is not None
        profile = home / "profile"
        done = subprocess.run(
            [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        shutil.rmtree(profile, ignore_errors=True)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def seen(mission: tuple[dict[str, Any], Path], browse: Browse) -> dict[str, Any]:
    probed = mission[1].with_name("probed.html")
    probed.write_text(mission[1].read_text().replace("</body>", f"{PROBE}</body>"))
    document = browse(probed, "--dump-dom").stdout
    found = re.search(r'<pre id="probe">(.*?)</pre>', document, re.DOTALL)
    assert found is not None, "the page did not load"
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


def test_the_plots_are_drawn_with_the_values_of_the_rows(
    mission: tuple[dict[str, Any], Path], seen: dict[str, Any]
) -> None:
    rows = mission[0]["rows"]
    shared = [row for row in rows if row["mode"] != "plain"]
    whole = [row for row in shared if not row["has_survivor"]]
    timelines = [row for row in shared if row["tasks"] > 1]
    # ratios, speeds and a timeline for each run with neighbours, each across the page
    assert len(seen["plots"]) == 2 + len(timelines)
    assert all(width > 900 and height > 100 for _, _, width, height in seen["plots"])
    marks = seen["marks"]
    assert all(mark["box"][2] > 0 and mark["box"][3] > 0 for mark in marks)
    assert {mark["row"]: float(mark["value"]) for mark in marks if mark["plot"] == "ratio"} == {
        row["name"]: row["ratio"] for row in whole
    }
    assert sum(mark["plot"] == "speed" for mark in marks) == sum(len(row["details"]) for row in whole)
    held = [
        [mark["row"], mark["task"], float(mark["begin"]), float(mark["end"])]
        for mark in marks
        if mark["plot"] == "held"
    ]
    assert held == [
        [row["name"], task["task"], *span]
        for row in timelines
        for card in row["timeline"]
        for task in card["tasks"]
        for span in task["held"]
    ]
    memory = {(mark["row"], mark["task"]): json.loads(mark["points"]) for mark in marks if mark["plot"] == "resident"}
    assert memory == {
        (row["name"], task["task"]): [entry[:2] for entry in task["memory"]]
        for row in timelines
        for card in row["timeline"]
        for task in card["tasks"]
    }


def test_bars_are_as_long_as_their_values(seen: dict[str, Any]) -> None:
    bars = [(float(mark["value"]), mark["box"][2]) for mark in seen["marks"] if mark["plot"] == "ratio"]
    per_unit = [width / value for value, width in bars]
    assert max(per_unit) / min(per_unit) < 1.01


def test_colours_and_hints_work_and_nothing_was_asked_of_a_network(seen: dict[str, Any]) -> None:
    assert seen["fill"] != "rgb(0, 0, 0)"
    shown, meant = seen["tip"]
    assert shown == meant != ""
    assert seen["asked"] == []
    assert seen["wide"] <= 0


def test_a_picture_can_be_taken_by_day_and_by_night(
    mission: tuple[dict[str, Any], Path], browse: Browse, tmp_path: Path
) -> None:
    pictures = []
    for name, flags in (("day", ()), ("night", ("--blink-settings=preferredColorScheme=0",))):
        picture = tmp_path / f"{name}.png"
        browse(mission[1], *flags, f"--screenshot={picture}")
        pictures.append(picture.read_bytes())
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 20_000 for picture in pictures)
    assert pictures[0] != pictures[1]
