"""Bad input of the commands: refused in one line with the allowed form, exit code 2, before any scheduler is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from nvshare.cli.ctl import main as ctl
from nvshare.cli.scheduler import main as scheduler

CTL = {
    ("set",): "give --mode, or one of",
    ("set", "--mode", "fast"): "'auto', 'serial', 'concurrent'",
    ("set", "--mem", "4GiB"): "give --mode, or one of",
    ("set", "--pid", "1"): "give --mode, or one of",
    ("set", "--pid", "1", "--client", "ab", "--mem", "1Gi"): "give --mode, or one of",
    ("set", "--pid", "1", "--mem", "4X"): "use 4Gi or 4GiB",
    ("set", "--pid", "1", "--cores", "0"): "from 1 to 100, or none",
    ("set", "--pid", "1", "--cores", "half"): "from 1 to 100, or none",
    ("set", "--pid", "me", "--mem", "1Gi"): "not a valid integer",
    ("set", "--pid", "1", "--priority", "low"): "'normal', 'high'",
    ("-T", "0"): "1<=x<=86400",
    ("-T", "soon"): "not a valid integer",
    ("-S", "maybe"): "'on', 'off'",
    ("fly",): "No such command",
}


@pytest.mark.parametrize("arguments", CTL, ids=" ".join)
def test_nvsharectl_says_what_is_allowed(arguments):
    result = CliRunner().invoke(ctl, ["--socket", "/nonexistent/x.sock", *arguments])
    assert result.exit_code == 2
    assert CTL[arguments] in result.output
    assert "Traceback" not in result.output


SCHEDULER = {
    ("--card-memory", "16X"): "use 4Gi or 4GiB",
    ("--mode", "fast"): "'auto', 'serial', 'concurrent'",
    ("--tq", "0"): "1<=x<=86400",
    ("--idle-exit", "-1"): "x>=0",
}


@pytest.mark.parametrize("arguments", SCHEDULER, ids=" ".join)
def test_nvshare_scheduler_says_what_is_allowed(arguments):
    result = CliRunner().invoke(scheduler, arguments)
    assert result.exit_code == 2
    assert SCHEDULER[arguments] in result.output


def test_no_scheduler_is_exit_code_1_with_the_socket_and_what_to_do():
    result = CliRunner().invoke(ctl, ["--socket", "/nonexistent/x.sock", "status"])
    assert result.exit_code == 1
    assert "/nonexistent/x.sock" in result.output
    assert "nvshare-scheduler --user" in result.output
