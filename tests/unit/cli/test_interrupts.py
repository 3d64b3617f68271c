"""Ctrl-C ends a command once, cleanly, whenever it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from nvshare.cli.interrupts import ENDING, code_of, ended_by

ROOT = Path(__file__).resolve().parents[3]


def test_the_first_ctrl_c_interrupts_and_no_further_signal_disturbs_the_cleaning_up():
    cleaned = []

    def interrupted():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            for number in ENDING:
                signal.raise_signal(number)
            with ended_by(signal.SIGINT):  # what cleans up may say so itself, and is not disturbed either
                signal.raise_signal(signal.SIGINT)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), ended_by(*ENDING):
        interrupted()
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", ENDING)
def test_the_exit_code_says_which_signal_it_was(number):
    with pytest.raises(KeyboardInterrupt) as caught, ended_by(*ENDING):
        signal.raise_signal(number)
    assert code_of(caught.value) == 128 + number
    assert code_of(KeyboardInterrupt()) == 130  # as Python itself does it


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by(signal.SIGHUP):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_ctrl_c_while_a_program_is_imported_is_not_worth_a_word():
    script = "import nvshare.cli.entry, signal; signal.raise_signal(signal.SIGINT)"
    done = python(script)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nor_is_one_while_python_ends():
    script = "import atexit, signal, sys; atexit.register(lambda: signal.raise_signal(signal.SIGINT))\n"
    script += "sys.argv = ['nvshare', '--version']\nfrom nvshare.cli.entry import nvshare; nvshare()"
    done = python(script)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_every_program_begins_there():
    tomllib = pytest.importorskip("tomllib")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert module == "nvshare.cli.entry"
        assert callable(getattr(import_module(module), function))
