"""``lease``, ``alease`` and ``run``: what a program that starts processes itself has of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvshare.gpu import sim
from nvshare.launch import (
    CannotStart,
    Cores,
    GpuPool,
    LeaseRefused,
    LeaseTimeout,
    NoGpu,
    WorkerTimeout,
    alease,
    check,
    lease,
    run,
)
from tests.integration.launch.launch_node import PATIENCE, LaunchNode
from tests.support.processes import Run, eventually

GIB = 1 << 30
SEE = [sys.executable, "-m", "nvshare.launch.seen"]


def test_a_lease_is_for_the_processes_that_its_holder_starts(node: LaunchNode) -> None:
    with lease(mem="1GiB", cores=25, label="mine") as held:
        seen = subprocess.run(SEE, env=held.env(), capture_output=True, text=True, check=True).stdout.split()
        assert seen == list(held.gpus)
        assert held.env()["NVSHARE_GPU_MEMORY_LIMIT"] == str(GIB)
        (known,) = node.leases()
        assert (known["id"], known["label"], known["mem"], known["cores"]) == (held.id, "mine", GIB, 25)
        assert held.lost is None
    assert held.lost is not None
    node.await_clean()


def test_a_lease_says_what_it_is_and_why_it_ended(node: LaunchNode) -> None:
    with lease(mem="1GiB", cores=25) as held:
        text = f"<Lease {held.id}: {held.gpus[0]}, mem=1.0 GiB, cores=25"
        assert repr(held) == f"{text}>"
    assert repr(held) == f"{text}; it was given back>"
    with lease(gpus=0) as held:
        assert repr(held) == "<Lease -: CPU only>"


def test_sim_names_a_simulated_node_that_is_made() -> None:
    try:
        with lease(sim="1xT4") as held:
            node = sim.find("1xT4")
            assert held.gpus == node.uuids
        with GpuPool(1, sim="1xT4") as pool:
            assert pool.submit(os.getenv, "NVSHARE_SIM_NODE").result() == str(node.directory)
        assert run(["sh", "-c", f"test $NVSHARE_SIM_NODE = {node.directory}"], sim="1xT4").code == 0
    finally:
        sim.down("1xT4")
    with pytest.raises(ValueError, match="no card profile 'T9'"), lease(sim="9xT9"):
        pass


@pytest.mark.parametrize("cores", ["30..60", Cores(30, 60)])
def test_a_lease_with_a_floor_is_guaranteed_it_on_its_card(node: LaunchNode, cores: str | Cores) -> None:
    with lease(cores=cores) as held:
        subprocess.run(SEE, env=held.env(), capture_output=True, check=True)
        (known,) = node.leases()
        assert (known["core_floor"], known["cores"], held.cores) == (30, 60, "30..60")
        assert held.env()["NVSHARE_GPU_CORE_LIMIT"] == "30..60"
        (group,) = node.status()["groups"]
        assert (group["core_floor"], group["core_limit"], group["core_floor_in_force"]) == (30, 60, {held.gpus[0]: 30})


def test_leases_with_floors_share_a_card_until_it_is_full(make_node: Callable[[str], LaunchNode]) -> None:
    make_node("1xT4")
    with lease(cores="50.."), lease(cores="50.."), pytest.raises(LeaseTimeout), lease(cores="1..", timeout=0.2):
        pass


def test_a_lease_over_several_cards_has_different_ones(node: LaunchNode) -> None:
    with lease(gpus=3) as held:
        assert len(set(held.gpus)) == 3


def test_a_lease_that_is_not_granted_in_time_raises_and_waits_no_more(make_node: Callable[[str], LaunchNode]) -> None:
    node = make_node("1xT4")
    with lease(cores=80):
        with pytest.raises(LeaseTimeout, match=r"0\.2 s"), lease(cores=80, timeout=0.2):
            pass
        assert eventually(lambda: len(node.leases()) == 1, PATIENCE)


def test_what_can_never_be_granted_raises_at_once(node: LaunchNode) -> None:
    with pytest.raises(LeaseRefused, match="largest GPU"), lease(mem="1TiB"):
        pass
    with pytest.raises(LeaseRefused, match="5 GPUs are asked for"), lease(gpus=5):
        pass
    for wrong in (
        {"mem": "many"},
        {"cores": 0},
        {"cores": 101},
        {"cores": "60..30"},
        {"cores": True},
        {"gpus": -1},
        {"timeout": -1},
        {"on_no_gpu": "maybe"},
    ):
        with pytest.raises(ValueError), lease(**wrong):
            pass


def test_an_outer_bound_is_never_exceeded(node: LaunchNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{node.uuids[2][:12]},0")
    with lease() as one, lease() as two:
        assert {*one.gpus, *two.gpus} == {node.uuids[0], node.uuids[2]}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoGpu, match="leaves no GPU"), lease():
        pass
    with lease(on_no_gpu="cpu") as held:
        assert held.gpus == ()
        assert subprocess.run(SEE, env=held.env(), capture_output=True, check=True).stdout == b""


def test_two_leases_of_one_process_keep_their_own_quotas(node: LaunchNode) -> None:
    ask = [sys.executable, "-c", "from nvshare.launch import check; print(check().mem)"]
    with lease(mem="1GiB") as one, lease(mem="2GiB") as two:
        for held, mem in ((one, GIB), (two, 2 * GIB)):
            done = subprocess.run(ask, env=held.env(), capture_output=True, text=True, check=True)
            assert int(done.stdout) == mem


def test_leases_for_asyncio_leave_the_loop_free_and_can_be_cancelled(make_node: Callable[[str], LaunchNode]) -> None:
    node = make_node("1xT4")

    async def wait_in_vain() -> None:
        async with alease(cores=80):
            raise AssertionError("granted twice")

    async def main() -> int:
        ticks = 0
        async with alease(cores=80) as held:
            assert held.gpus == node.uuids
            waiter = asyncio.ensure_future(wait_in_vain())
            while not any(one["state"] == "waiting" for one in await asyncio.to_thread(node.leases)):
                ticks += 1
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        return ticks

    assert asyncio.run(main()) > 0
    node.await_clean()


def test_the_death_of_the_holder_frees_its_lease(node: LaunchNode, run_program: Run) -> None:
    script = "from nvshare.launch import lease\nwith lease():\n    print('held', flush=True)\n    input()"
    holder = run_program([sys.executable, "-c", script])
    assert holder.line() == "held"
    assert len(node.leases()) == 1
    holder.kill()
    assert eventually(lambda: node.leases() == [], PATIENCE)


def test_run_tells_how_a_command_ended_and_keeps_its_output(node: LaunchNode, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run(["sh", "-c", "echo on $CUDA_VISIBLE_DEVICES; echo err >&2; exit 3"], mem="1GiB", log=log)
    assert (done.code, done.signal, done.ok) == (3, None, False)
    assert log.read_text() == f"on {done.gpus[0]}\nerr\n"
    done = run(["sh", "-c", "kill -TERM $$"])
    assert (done.code, done.signal) == (None, signal.SIGTERM)
    node.await_clean()


def test_run_leaves_nothing_of_its_command(node: LaunchNode) -> None:
    assert run(["sh", "-c", "sleep 600 & setsid sleep 600 & exit 0"], grace=0.5).ok
    assert node.processes() == set()


def test_run_ends_what_passes_its_deadline_also_if_it_does_not_listen(node: LaunchNode) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerTimeout):
        run(["sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"], deadline=0.3, grace=0.3)
    assert time.monotonic() - began < PATIENCE
    node.await_clean()


def test_a_command_that_does_not_exist_is_no_lease(node: LaunchNode) -> None:
    with pytest.raises(CannotStart, match="no-such-command"):
        run(["no-such-command"])
    with pytest.raises(CannotStart):
        run([str(Path(__file__))])  # not executable
    node.await_clean()


def test_check_outside_of_a_lease_only_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVSHARE_LEASE", raising=False)
    assert check().lease == ""


def test_a_stopped_worker_can_be_ended(node: LaunchNode) -> None:
    with pytest.raises(WorkerTimeout):
        run(["sh", "-c", "kill -STOP $$"], deadline=0.3, grace=0.3)
    node.await_clean()


def test_the_number_of_open_files_does_not_grow(node: LaunchNode) -> None:
    run(["true"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run(["true"])
        with lease():
            pass
    assert len(os.listdir("/proc/self/fd")) <= before
