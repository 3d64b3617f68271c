"""``nvshare kube-test``: proves sharing on whatever cluster the kubeconfig names."""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nvshare import __version__, config
from nvshare.acceptance.exit_code import FAILED, PASSED
from nvshare.acceptance.kube_test.kubectl import Kubectl, KubectlFailed
from nvshare.acceptance.kube_test.plan import LEAST_LIMIT, Request
from nvshare.acceptance.kube_test.run import KubeTest, Seen, TestFailed, Watchers, manifests
from nvshare.bench.workloads.spec import WORKLOADS
from nvshare.cli.interrupts import code_of, ended_by, uninterrupted
from nvshare.cli.options import SIZE, Finite, PlainCommand, Seconds, fail
from nvshare.cli.results import HTML, JSON, require_apart, say, write
from nvshare.report.kube import KIND, SOURCE, NoBaseline, read_baseline, result

_IMAGE = f"localhost/nvshare/nvshare-workloads:{__version__}"


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("count", metavar="[N]", type=click.IntRange(1, 1000), default=4)
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default="add-small", show_default=True)
@click.option("--serial", is_flag=True, help="One task at a time per GPU, and it must be so.")
@click.option("--baseline", is_flag=True, help="Whole GPUs (nvidia.com/gpu), without nvshare.")
@click.option("--skip-setup", is_flag=True, help="Use the nvshare that is installed.")
@click.option("--mem", type=SIZE, help="Limit every pod, e.g. 1Gi: every other asks for more, and must get the error.")
@click.option("--dynamic", is_flag=True, help="Raise the memory limit while the pods run.")
@click.option("--image", default=_IMAGE, show_default=True, help="Of the pods.")
@click.option("--namespace", default="default", show_default=True, help="Of the pods.")
@click.option("--manifests", "directory", type=click.Path(file_okay=False, path_type=Path), help="What to install.")
@click.option("--kubectl", "program", default="kubectl", show_default=True, help="The program to use.")
@click.option("--context", help="Of the kubeconfig. Default: its current one.")
@click.option("--iterations", type=click.IntRange(1), help="Adds per pod. Default: the workload's own.")
@click.option("--n", type=click.IntRange(1), help="Matrices are n x n. Default: the workload's own.")
@click.option("--speed", type=Finite(min=0, min_open=True), default=1.0, help="Of simulated cards.")
@click.option("--timeout", type=Seconds(min=1), default=3600, show_default=True, help="Seconds for the pods to end.")
@click.option("--against", type=click.Path(dir_okay=False, path_type=Path), help="JSON of a --baseline test.")
@JSON
@HTML
def command(
    count: int,
    workload: str,
    serial: bool,
    baseline: bool,
    skip_setup: bool,
    mem: int | None,
    dynamic: bool,
    image: str,
    namespace: str,
    directory: Path | None,
    program: str,
    context: str | None,
    iterations: int | None,
    n: int | None,
    speed: float,
    timeout: float,
    against: Path | None,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Install nvshare, run N pods that share the GPUs of a cluster, and judge what happened.

    \b
    nvshare kube-test 4                               four pods of add-small
    nvshare kube-test --workload add-idle-small 6
    nvshare kube-test --serial 4                      one at a time per GPU
    nvshare kube-test --mem 1Gi 2                     a memory limit by annotation
    nvshare kube-test --dynamic 2                     ... raised while they run
    nvshare kube-test --baseline --json plain.json 1  whole GPUs, to compare
    nvshare kube-test --against plain.json --html pods.html 4

    Talks to the cluster through kubectl alone. The pods are gone afterwards and schedulers in the mode they had, also
    after Ctrl-C; nvshare stays installed. Exit code: 0 passed, 1 failed, 2 set-up or usage.
    """
    _require_one_kind(serial, baseline, mem, dynamic)
    require_apart({"--json": json_path, "--html": html_path}, reads=(against,) if against else ())
    chosen = WORKLOADS[workload]
    chosen = replace(chosen, iterations=iterations or chosen.iterations, n=n or chosen.n)
    request = Request(
        count=count,
        workload=chosen,
        image=image,
        run_id=secrets.token_hex(4),
        namespace=namespace,
        serial=serial,
        baseline=baseline,
        mem=mem,
        dynamic=dynamic,
        speed=speed,
    )
    kubectl = Kubectl(program, ("--context", context) if context else ())
    with _plain_errors():
        baseline_s = read_baseline(against, request) if against else None
        files = [] if skip_setup or baseline else manifests(directory)
        with _watchers() as watchers:
            test = KubeTest(kubectl, request, watchers, timeout, undisturbed=uninterrupted)
            if files:
                test.set_up(files)
            seen = test.run()
    report = result(request, seen, baseline_s)
    written = write(KIND, SOURCE, report.to_dict(), json_path, html_path)
    say([*written, report.text()])
    raise SystemExit(PASSED if report.passed else FAILED)


def _require_one_kind(serial: bool, baseline: bool, mem: int | None, dynamic: bool) -> None:
    if baseline and (serial or dynamic or mem is not None):
        fail("--baseline runs without nvshare: --serial, --mem and --dynamic do not go with it", 2)
    if mem is not None and mem < LEAST_LIMIT:
        fail(f"--mem: {config.format_size(mem)} is too little to judge: at least {config.format_size(LEAST_LIMIT)}", 2)
    if serial and (dynamic or mem is not None):
        fail("--serial does not go with --mem and --dynamic: choose one", 2)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors of the cluster end the command with one line; a polite kill ends it as cleanly as Ctrl-C."""
    with ended_by(signal.SIGTERM, signal.SIGHUP):
        try:
            yield
        except (KubectlFailed, TestFailed, NoBaseline) as error:
            fail(str(error), 2)
        except KeyboardInterrupt as ending:
            fail("interrupted; its pods are gone", code_of(ending))


@contextlib.contextmanager
def _watchers() -> Iterator[Watchers]:
    """Bars on a terminal; elsewhere a line for each step and each pod that changes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        phases: dict[str, str] = {}

        def changed(pods: Sequence[Seen]) -> None:
            for pod in pods:
                text = f"{pod.state.name}: {_words(pod)}"
                if phases.get(pod.state.name) != text:
                    phases[pod.state.name] = text
                    click.echo(text, err=True)

        yield Watchers(lambda text: click.echo(text, err=True), changed)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        step = bars.add_task("", total=None, words="")
        known: dict[str, TaskID] = {}

        def show(pods: Sequence[Seen]) -> None:
            for pod in pods:
                name = pod.state.name
                if name not in known:
                    known[name] = bars.add_task(name, total=1.0, words="")
                bars.update(known[name], completed=1.0 if pod.state.done else pod.done, words=_words(pod))

        yield Watchers(lambda text: bars.update(step, description=text), show)


def _words(pod: Seen) -> str:
    state = pod.state
    node = f" on {state.node}" if state.node else ""
    return f"{state.phase}{node}" + (f" ({state.problem})" if state.problem and not state.done else "")
