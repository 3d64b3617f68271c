"""Bad input of the commands: refused in one line with the allowed form, exit code 2, before any scheduler is asked."""

from __future__ import annotations

import importlib
import re
import signal
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from nvshare.cli.ctl import main as ctl
from nvshare.cli.device_plugin import main as device_plugin
from nvshare.cli.main import SUBCOMMANDS
from nvshare.cli.main import main as nvshare
from nvshare.cli.pod_watch import main as pod_watch
from nvshare.cli.scheduler import main as scheduler

STYLE = {  # of every command one kind of mistake each: what was typed, then all that is said of it
    ("run", "--cores", "0", "--", "true"): "--cores: '0' is not a compute quota: "
    "use 60, 30..60 (30 guaranteed, at most 60) or 30.., in whole percent from 1 to 100",
    ("run",): "Missing argument 'COMMAND...'; see nvshare run --help",
    ("launch", "--timeout", "nan", "--", "true"): "--timeout: nan is not a number of seconds",
    ("run", "--speed", "3", "--", "true"): "--speed is that of a simulated node: give --sim, or leave it out",
    ("launch", "--speed", "3", "--", "true"): "--speed is that of a simulated node: give --sim, or leave it out",
    ("stress", "--speed", "3"): "--speed is that of a simulated node: give --sim, or leave it out",
    ("env", "--speed", "3"): "--speed is that of a simulated node: give --sim, or leave it out",
    ("launch", "--gpus", "cpu", "--mem", "4GiB", "--", "true"): (
        "--mem is a quota on a GPU, and --gpus cpu leaves none: leave out one of them"
    ),
    ("stress", "--skip-stress", "--skip-launch"): "--skip-stress and --skip-launch leave nothing to do",
    ("verify", "concurrency"): "Missing argument 'LOG...'; see nvshare verify concurrency --help",
    ("verify", "concurrency", "a", "--expect", "any"): "--expect: 'any' is not one of 'parallel', 'serial', 'mixed'",
    ("doctor", "now"): "Got unexpected extra argument (now); see nvshare doctor --help",
    ("env", "--docker", "--sim", "T4"): (
        "a simulated node lives in this machine's processes: --docker and --sim do not go together"
    ),
    ("cdi", "now"): "Got unexpected extra argument (now); see nvshare cdi --help",
    ("install",): "say what to install: --system, the scheduler as a systemd service",
    ("sim", "up"): "Missing argument 'SPEC'; see nvshare sim up --help",
    ("demo", "--json", "/nowhere/x"): "--json: /nowhere/x cannot be written (No such file or directory)",
    ("bench", "mission", "--only", "9"): "--only: there is no test '9': allowed are 0, 1, 2, 3, 4, 5, 6",
    ("bench", "mission", "--model", "T4", "--sim", "T4"): "--model and --sim do not go together: choose one",
    ("bench", "swap", "--html", "/nowhere/x"): "--html: /nowhere/x cannot be written (No such file or directory)",
    ("report", "/nowhere/x"): "A.json: File '/nowhere/x' does not exist",
    ("kube-test", "few"): "N: 'few' is not a valid integer range",
    ("kube-test", "--serial", "--mem", "1Gi"): "--serial does not go with --mem and --dynamic: choose one",
}


@pytest.mark.parametrize("arguments", STYLE, ids=" ".join)
def test_mistakes_have_one_style_in_all_commands(arguments):
    result = CliRunner().invoke(nvshare, arguments, prog_name="nvshare")
    assert result.exit_code == 2
    assert result.output == f"[NVSHARE][FATAL]: {STYLE[arguments]}\n"


def test_every_command_is_asked_for_its_style():
    assert {arguments[0] for arguments in STYLE} == set(SUBCOMMANDS)


@pytest.mark.parametrize("program", [nvshare, ctl, scheduler, device_plugin, pod_watch])
def test_an_unknown_option_is_one_line_in_all_programs(program):
    result = CliRunner().invoke(program, ["--frob"], prog_name="it")
    assert result.exit_code == 2
    assert re.fullmatch(r"\[NVSHARE\]\[FATAL\]: No such option:? '?--frob'?; see it --help\n", result.output)


def every_command(command, name):
    yield pytest.param(command, id=name)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            yield from every_command(command.get_command(context, part), f"{name} {part}")


PROGRAMS = {
    "nvshare": nvshare,
    "nvsharectl": ctl,
    "nvshare-scheduler": scheduler,
    "nvshare-device-plugin": device_plugin,
    "nvshare-pod-watch": pod_watch,
}


@pytest.mark.parametrize("command", [one for name, program in PROGRAMS.items() for one in every_command(program, name)])
def test_help_fits_a_terminal_of_80_columns(command):
    result = CliRunner().invoke(command, ["--help"], terminal_width=80)
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if len(line) > 80] == []


def every_number(programs):
    for name, program in programs.items():
        for one in every_command(program, name):
            for option in one.values[0].params:
                if isinstance(option.type, click.types.FloatParamType):
                    yield pytest.param(one.values[0], option, id=f"{one.id} {option.opts[0]}")


NUMBERS = list(every_number(PROGRAMS))


@pytest.mark.parametrize("typed", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(("command", "option"), NUMBERS)
def test_every_number_is_finite(command, option, typed):
    with pytest.raises(click.BadParameter) as refused:
        command.make_context("it", [f"{option.opts[0]}={typed}"])
    assert refused.value.param is option


def test_numbers_are_found_wherever_they_are():
    found = {number.id for number in NUMBERS}
    assert found >= {"nvshare run --speed", "nvshare bench mission --shorten", "nvshare verify --seconds"}
    assert found >= {"nvshare-scheduler --idle-exit", "nvshare-device-plugin --memory-ratio"}


def test_without_a_command_there_is_help():
    result = CliRunner().invoke(nvshare, ["bench"])
    assert "Commands:" in result.output
    assert "FATAL" not in result.output


CTL = {
    ("set",): "give --mode, or one of",
    ("set", "--mode", "fast"): "'auto', 'serial', 'concurrent'",
    ("set", "--mem", "4GiB"): "give --mode, or one of",
    ("set", "--pid", "1"): "give --mode, or one of",
    ("set", "--pid", "1", "--client", "ab", "--mem", "1Gi"): "give --mode, or one of",
    ("set", "--pid", "1", "--mem", "4X"): "use 4Gi or 4GiB",
    ("set", "--pid", "1", "--cores", "0"): "from 1 to 100, or none",
    ("set", "--pid", "1", "--cores", "-5"): "from 1 to 100, or none",
    ("set", "--pid", "1", "--cores", "101"): "from 1 to 100, or none",
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


CORES = {  # where a compute quota is typed: what stands before and after it, and what else is allowed there
    "run": (nvshare, ("run",), ("--", "no-such-program"), ""),
    "launch": (nvshare, ("launch",), ("--", "no-such-program"), ""),
    "set": (ctl, ("--socket", "/nonexistent/x.sock", "set", "--pid", "1"), (), ", or none"),
}
NO_CORES = ["0", "-1", "-0", "101", "1000", "half", "30.5", "nan", "inf", "1e2", "", "30%%", "3_0", "+30", " 30", "30 "]
NO_CORES += ["..", "0..60", "30..0", "30..101", "101..", "30...60", "30..60..", "30 .. 60", "-1..60", "30-60"]
NO_CORES += ["\u0663\u0660", "\uff13\uff10", "0x1e", "000", "None"]


@pytest.mark.parametrize("entrance", CORES)
@pytest.mark.parametrize("cores", [*NO_CORES, "9" * 5000], ids=lambda cores: repr(cores[:8]))
def test_every_entrance_refuses_the_same_cores_in_the_same_words(entrance, cores):
    program, before, after, also = CORES[entrance]
    result = CliRunner().invoke(program, [*before, "--cores", cores, *after])
    forms = "use 60, 30..60 (30 guaranteed, at most 60) or 30.., in whole percent from 1 to 100"
    said = f"[NVSHARE][FATAL]: --cores: {cores!r} is not a compute quota: {forms}{also}\n"
    assert (result.exit_code, result.output) == (2, said)


@pytest.mark.parametrize("entrance", CORES)
def test_every_entrance_names_a_floor_above_the_cap(entrance):
    program, before, after, also = CORES[entrance]
    result = CliRunner().invoke(program, [*before, "--cores", "60..30", *after])
    forms = "use 60, 30..60 (30 guaranteed, at most 60) or 30.., in whole percent from 1 to 100"
    said = f"[NVSHARE][FATAL]: --cores: '60..30' guarantees 60 and allows only 30: {forms}{also}\n"
    assert (result.exit_code, result.output) == (2, said)


def what_is_said_of(entrance, cores):
    program, before, after, _ = CORES[entrance]
    return CliRunner().invoke(program, [*before, "--cores", cores, *after]).output


@pytest.mark.parametrize("entrance", CORES)
@pytest.mark.parametrize(
    "cores",
    ["1", "30", "030", "100", "0" * 5000 + "7", "30%", "30..60", "30..", "..60", "30%..60%"],
    ids=lambda cores: repr(cores[:8]),
)
def test_every_entrance_takes_the_same_cores(entrance, cores):
    said = what_is_said_of(entrance, cores)
    assert said.startswith("[NVSHARE][FATAL]: ")  # only that the program, or the scheduler, is not there
    assert "--cores" not in said


def test_only_set_takes_cores_away():
    assert "--cores" in what_is_said_of("run", "none")
    assert "--cores" in what_is_said_of("launch", "none")
    assert "--cores" not in what_is_said_of("set", "none")


def test_help_says_where_a_quota_falls_back_to():
    told = " ".join(CliRunner().invoke(ctl, ["set", "--help"]).output.split())
    assert told.count("none: back to what the run, the pod or its environment says.") == 2
    assert "100: no quota" in told
    assert "none: no quota" not in told


@pytest.mark.parametrize("entrance", ["run", "launch"])
def test_help_says_which_cores_are_allowed(entrance):
    told = " ".join(CliRunner().invoke(nvshare, [entrance, "--help"]).output.split())
    assert re.search(r"--cores PERCENT [^-]*1 to 99; 100: no quota\.", told)


WORKERS = {
    ("launch", "--deadline", "inf", "--", "true"): "inf is not a number of seconds",
    ("launch", "--timeout", "nan", "--", "true"): "nan is not a number of seconds",
    ("stress", "--duration", "inf"): "inf is not a number of seconds",
    ("stress", "--json", "/proc/none/result.json"): "cannot be written",
    ("stress", "--gpu-log", "/proc/none/log.csv"): "cannot be written",
}


@pytest.mark.parametrize("content", [b"--seed 1\n\xff\xfe\n", bytes(range(256))])
def test_jobs_that_are_no_text_are_named_with_their_option(tmp_path, content):
    jobs = tmp_path / "jobs"
    jobs.write_bytes(content)
    result = CliRunner().invoke(nvshare, ["launch", "--jobs", str(jobs), "--", "true"])
    said = f"[NVSHARE][FATAL]: --jobs: {jobs} is not a list of jobs: it is not text in UTF-8\n"
    assert (result.exit_code, result.output) == (2, said)


@pytest.mark.parametrize("name", ["/etc/passwd", "/etc"])
def test_a_file_that_cannot_be_run_is_not_called_missing(name):
    result = CliRunner().invoke(nvshare, ["launch", "--", name])
    assert (result.exit_code, result.output) == (2, f"[NVSHARE][FATAL]: {name}: Permission denied\n")


@pytest.mark.parametrize("arguments", WORKERS, ids=" ".join)
def test_workers_refuse_what_would_fail_later(arguments):
    result = CliRunner().invoke(nvshare, arguments)
    assert result.exit_code == 2
    assert WORKERS[arguments] in result.output
    assert len(result.output.splitlines()) == 1


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


def test_simulated_node_that_is_not_up_is_named_with_those_that_are():
    result = CliRunner().invoke(ctl, ["--sim", "7xT4", "status"])
    assert result.exit_code == 2
    assert "no simulated node '7xT4' is up (up: " in result.output


def test_interrupted_command_is_exit_code_130_without_a_word(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("nvshare.gpu.sim.names", interrupted)
    result = CliRunner().invoke(nvshare, ["sim", "list"])
    assert (result.exit_code, result.output) == (130, "")


def test_ctrl_c_while_a_command_is_loaded_counts_afterwards(monkeypatch):
    loaded = []

    def load(name):
        signal.raise_signal(signal.SIGINT)
        loaded.append(name)
        return importlib.import_module(name)

    monkeypatch.setattr("nvshare.cli.main.importlib", SimpleNamespace(import_module=load))
    monkeypatch.setattr("nvshare.gpu.sim.names", lambda: pytest.fail("it went on"))
    result = CliRunner().invoke(nvshare, ["sim", "list"])
    assert (result.exit_code, result.output, loaded) == (130, "", ["nvshare.cli.sim"])


def test_no_scheduler_is_exit_code_1_with_the_socket_and_what_to_do():
    result = CliRunner().invoke(ctl, ["--socket", "/nonexistent/x.sock", "status"])
    assert result.exit_code == 1
    assert "/nonexistent/x.sock" in result.output
    assert "nvshare-scheduler --user" in result.output
