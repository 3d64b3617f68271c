"""GpuPool: what a future tells of its worker, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launch_acts as acts
import pytest

from nvshare import procfs
from nvshare.launch import (
    DeviceOutOfMemory,
    GpuPool,
    LeaseLost,
    LeaseRefused,
    LeaseTimeout,
    QuotaOutOfMemory,
    WorkerKilled,
    WorkerTimeout,
    WrongDevice,
    lease,
)
from nvshare.launch.supervised import Granted, Supervised
from tests.integration.launch.launch_node import PATIENCE, LaunchNode
from tests.support.processes import eventually

MIB = 1 << 20


def test_twelve_workers_on_four_cards_are_three_each_by_what_they_see(node: LaunchNode) -> None:
    with GpuPool(12, mem="256MiB", cores=33) as pool:
        seen: dict[int, tuple[Any, ...]] = {}
        while len(seen) < 12:  # whoever is quick may take several tasks
            for future in [pool.submit(acts.who) for _ in range(12)]:
                pid, uuids, mem = future.result(PATIENCE)
                seen[pid] = uuids
                assert mem == 256 * MIB
        assert sorted(seen.values()) == sorted([(uuid,) for uuid in node.uuids] * 3)
    node.await_clean()


def test_a_pool_with_more_workers_than_room_does_all_its_tasks_and_ends(make_node: Callable[[str], LaunchNode]) -> None:
    node = make_node("1xT4")
    with GpuPool(3, cores=60) as pool:
        assert list(pool.map(acts.square, range(12), timeout=PATIENCE)) == [number * number for number in range(12)]
        assert pool.stats().started == 1
    node.await_clean()


def test_a_pool_that_gets_no_lease_says_so(make_node: Callable[[str], LaunchNode]) -> None:
    make_node("1xT4")
    with lease(cores=80), GpuPool(2, cores=60, timeout=0.3) as pool, pytest.raises(LeaseTimeout):
        pool.submit(acts.square, 1).result(PATIENCE)
    with GpuPool(1, mem="1TiB") as pool, pytest.raises(LeaseRefused):
        pool.submit(acts.square, 1).result(PATIENCE)


def test_a_worker_killed_before_it_hears_anything_is_a_killed_worker(
    node: LaunchNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a worker that is killed when its lease has just been granted
    granted = Supervised.wait_granted

    def granted_and_killed(process: Supervised) -> Granted:
        monkeypatch.undo()
        lease_of_it = granted(process)
        assert procfs.kill(process.pid, PATIENCE)
        return lease_of_it

    with GpuPool(1) as pool:
        monkeypatch.setattr(Supervised, "wait_granted", granted_and_killed)
        # THEN that is what its task is told, and the next one has another worker
        with pytest.raises(WorkerKilled, match="SIGKILL"):
            pool.submit(acts.square, 1).result(PATIENCE)
        assert pool.submit(acts.square, 2).result(PATIENCE) == 4
    node.await_clean()


def test_an_answer_that_cannot_be_read_fails_only_its_own_future(node: LaunchNode) -> None:
    with GpuPool(1) as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(acts.Poisonous).result(PATIENCE)
        assert pool.submit(acts.square, 2).result(PATIENCE) == 4
    node.await_clean()


def test_results_come_in_order_from_reused_fresh_interpreters(node: LaunchNode) -> None:
    with GpuPool(2) as pool:
        assert list(pool.map(acts.square, range(20))) == [number * number for number in range(20)]
        assert pool.stats().started <= 2
    with GpuPool(1, reuse=False) as pool:
        pids = {pool.submit(acts.who).result(PATIENCE)[0] for _ in range(3)}
        assert len(pids) == 3


def test_a_crash_fails_only_its_own_future(node: LaunchNode) -> None:
    with GpuPool(2) as pool:
        good = pool.submit(acts.sleep, 0.3)
        bad = pool.submit(acts.die, signal.SIGSEGV)
        with pytest.raises(WorkerKilled, match="SIGSEGV") as caught:
            bad.result(PATIENCE)
        assert caught.value.signal == signal.SIGSEGV
        with pytest.raises(WorkerKilled, match="exit code 3"):
            pool.submit(acts.leave, 3).result(PATIENCE)
        assert good.result(PATIENCE) is None
        assert pool.submit(acts.square, 3).result(PATIENCE) == 9
    node.await_clean()


def test_a_task_that_its_worker_died_of_is_tried_again_if_asked(node: LaunchNode, tmp_path: Path) -> None:
    with GpuPool(1, retries=1) as pool:
        assert pool.submit(acts.die_once, str(tmp_path / "tried")).result(PATIENCE) == "done"
        with pytest.raises(WorkerKilled):
            pool.submit(acts.die).result(PATIENCE)


def test_a_task_that_passes_its_deadline_ends_with_its_worker(node: LaunchNode) -> None:
    with GpuPool(1, deadline=0.3) as pool:
        with pytest.raises(WorkerTimeout, match=r"0\.3 s"):
            pool.submit(acts.sleep, 60).result(PATIENCE)
        assert pool.submit_within(None, acts.sleep, 0.4).result(PATIENCE) is None


def test_exceptions_come_back_as_they_are_with_where_they_happened(node: LaunchNode) -> None:
    with GpuPool(1) as pool:
        with pytest.raises(KeyError, match="what was asked for") as caught:
            pool.submit(acts.complain).result(PATIENCE)
        assert "in complain" in str(caught.value.__cause__)
        with pytest.raises(RuntimeError, match="Unpicklable: this stays there"):
            pool.submit(acts.complain_unpicklably).result(PATIENCE)


def test_out_of_memory_says_whose_limit_it_was(node: LaunchNode) -> None:
    with GpuPool(1, mem="64MiB") as pool, pytest.raises(QuotaOutOfMemory, match="memory quota of the lease"):
        pool.submit(acts.take, 128 * MIB).result(PATIENCE)
    with GpuPool(1) as pool, pytest.raises(DeviceOutOfMemory, match="beyond the card"):
        pool.submit(acts.take, 64 << 30).result(PATIENCE)


def test_a_worker_that_sees_another_card_than_its_lease_is_told(node: LaunchNode) -> None:
    with GpuPool(1) as pool, pytest.raises(WrongDevice, match="the lease is on GPU-"):
        pool.submit(acts.lose_the_driver).result(PATIENCE)


def test_queued_tasks_can_be_cancelled_and_a_closed_pool_takes_no_more(node: LaunchNode) -> None:
    pool = GpuPool(1)
    pool.submit(acts.sleep, 0.3)
    queued = [pool.submit(acts.square, number) for number in range(3)]
    pool.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in queued)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(acts.square, 1)
    node.await_clean()


def test_the_environment_is_set_before_the_interpreter_starts(node: LaunchNode) -> None:
    with GpuPool(1, cores=25, env={"PYTHONHASHSEED": "7"}) as pool:
        assert pool.submit(acts.environment, "NVSHARE_GPU_CORE_LIMIT").result(PATIENCE) == "25"
        assert pool.submit(hash, "text").result(PATIENCE) != hash("text") or os.environ.get("PYTHONHASHSEED") == "7"
        seen = pool.submit(acts.environment, "CUDA_VISIBLE_DEVICES").result(PATIENCE)
        assert seen in node.uuids


def test_cpu_workers_see_no_gpu(node: LaunchNode) -> None:
    with GpuPool(2, gpus=0) as pool:
        assert pool.submit(acts.environment, "CUDA_VISIBLE_DEVICES").result(PATIENCE) == ""
        assert pool.submit(acts.who).result(PATIENCE)[1:] == ((), None)
        assert node.leases() == []


def test_functions_of_the_main_module_work_and_a_main_without_a_guard_is_told(node: LaunchNode, tmp_path: Path) -> None:
    body = "from nvshare.launch import GpuPool\ndef twice(x):\n    return 2 * x\n"
    guarded = tmp_path / "guarded.py"
    guarded.write_text(
        body + "if __name__ == '__main__':\n    with GpuPool(1) as pool:\n"
        "        print(pool.submit(twice, 21).result(20))\n"
    )
    done = subprocess.run([sys.executable, guarded], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "42", done.stderr
    bare = tmp_path / "bare.py"
    bare.write_text(body + "with GpuPool(1) as pool:\n    print(pool.submit(twice, 21).result(20))\n")
    done = subprocess.run([sys.executable, bare], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert 'if __name__ == "__main__"' in done.stderr


def test_a_pool_outlives_its_scheduler(node: LaunchNode) -> None:
    with GpuPool(2, mem="256MiB") as pool:
        before = {future.result(PATIENCE) for future in [pool.submit(acts.who) for _ in range(8)]}
        leases = {lease["id"] for lease in node.leases()}
        node.restart_scheduler()
        after = {future.result(PATIENCE) for future in [pool.submit(acts.who) for _ in range(8)]}
        assert {pid for pid, _, _ in after} <= {pid for pid, _, _ in before}
        assert {lease["id"] for lease in node.leases()} == leases
    node.await_clean()


def test_who_comes_after_a_restart_does_not_get_what_others_hold(make_node: Callable[[str], LaunchNode]) -> None:
    # GIVEN a lease for most of the only card
    node = make_node("1xT4")
    with GpuPool(1, cores=80) as pool:
        mine = pool.submit(acts.who).result(PATIENCE)
        # WHEN the scheduler is restarted and somebody asks at once
        node.restart_scheduler()
        with GpuPool(1, cores=80) as second:
            waiting = second.submit(acts.who)
            # THEN the holder has its place on, and the newcomer gets it afterwards
            assert eventually(lambda: len(node.leases()) == 2, PATIENCE)
            assert {lease["state"] for lease in node.leases()} == {"held", "waiting"}
            assert pool.submit(acts.who).result(PATIENCE) == mine
            pool.shutdown()
            assert waiting.result(PATIENCE)[1] == mine[1]


def test_a_lease_whose_place_was_given_to_others_is_lost(make_node: Callable[[str], LaunchNode]) -> None:
    node = make_node("1xT4")
    with GpuPool(1, cores=80) as pool:
        pid = pool.submit(acts.who).result(PATIENCE)[0]
        busy = pool.submit(acts.sleep, 60)
        # GIVEN its supervisor hears of nothing while the scheduler is restarted and its place is given away
        keeper = procfs.parent(pid)
        os.kill(keeper, signal.SIGSTOP)
        node.restart_scheduler()
        with lease(cores=80, timeout=PATIENCE):
            # WHEN it comes back THEN the task ends and says so
            os.kill(keeper, signal.SIGCONT)
            with pytest.raises(LeaseLost, match="was given to others"):
                busy.result(PATIENCE)
    node.await_clean()


def test_a_deaf_family_ends_with_its_worker(node: LaunchNode) -> None:
    began = time.monotonic()
    with GpuPool(1, grace=0.3) as pool:
        pids = pool.submit(acts.spawn_deaf_family).result(PATIENCE)
        # One that execs has no environment for a moment.
        assert eventually(lambda: set(pids) <= node.processes(), PATIENCE)
    assert not set(pids) & node.processes()
    assert time.monotonic() - began < PATIENCE
    node.await_clean()
