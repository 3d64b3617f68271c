"""The device plugin as a process, against the kubelet's double: what a cluster cannot be made to do at will."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from nvshare import native
from nvshare.kube.api import deviceplugin_pb2 as api
from tests.kube.doubles.kubelet import AdmissionError, Kubelet
from tests.kube.doubles.world import DoublesWorld
from tests.kube.world import GPU, GPUMEM, wait_for

T4_MIB = 14913
OUTSIDER = """
import sys
from nvshare.bench.driver import Context, Driver
with Context(Driver()) as context:
    context.allocate(64 << 20)
    print("allocated", flush=True)
    sys.stdin.read()
"""
MakeWorld = Callable[..., DoublesWorld]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    with contextlib.ExitStack() as made:

        def make(spec: str = "2xT4", *options: str) -> DoublesWorld:
            world = DoublesWorld(spec, plugin_options=options)
            made.callback(world.close)
            return world

        yield make


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvs-", dir="/tmp") as path:
        yield Path(path)


def allocate(*devices: str) -> api.AllocateRequest:
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=devices)])


def card(device: str) -> str:
    return device.rpartition("__")[0]


def test_every_card_is_ten_devices_named_after_it(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--no-gpumem")
    pods = [world.kubelet.admit(f"p{number}", {GPU: 1}) for number in range(20)]
    given = {device for pod in pods for device in pod.containers[0].devices[GPU]}
    assert given == {f"{gpu}__{number}" for gpu in world.gpus for number in range(1, 11)}
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        world.kubelet.admit("one-too-many", {GPU: 1})


def test_the_number_of_devices_can_be_set(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--devices", "3", "--no-gpumem")
    assert world.capacity() == 6


def test_pack_fills_one_card_first(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--placement", "pack", "--devices", "3", "--no-gpumem")
    pods = [world.kubelet.admit(f"p{number}", {GPU: 1}) for number in range(4)]
    cards = [card(pod.containers[0].devices[GPU][0]) for pod in pods]
    assert cards[0] == cards[1] == cards[2] != cards[3]


def test_containers_that_want_several_get_different_cards(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--no-gpumem")
    pod = world.kubelet.admit("wide", {GPU: 2})
    assert {card(device) for device in pod.containers[0].devices[GPU]} == set(world.gpus)


def test_a_container_gets_what_runs_it_on_its_card(make_world: MakeWorld) -> None:
    world = make_world()
    pod = world.create("p", gpumem=2048)
    variables = world.task_environment(pod)
    (device,) = world.devices(pod)
    assert variables["CUDA_VISIBLE_DEVICES"] == variables["NVIDIA_VISIBLE_DEVICES"] == card(device)
    assert variables["NVSHARE_GPU_MEMORY_LIMIT"] == "2048Mi"
    assert Path(variables["LD_PRELOAD"]).is_file()
    assert Path(variables["NVSHARE_SOCK"]).is_socket()


def test_a_kubelet_that_ignores_the_preference_is_followed(make_world: MakeWorld) -> None:
    """What counts is who has what, not what was preferred."""
    world = make_world("8xT4", "--no-gpumem")
    world.kubelet.follow_hints = False
    for number in range(20):
        world.kubelet.admit(f"wild-{number}", {GPU: 1})
    world.kubelet.follow_hints = True
    for number in range(20):
        use = dict.fromkeys(world.gpus, 0)
        for pod in world.kubelet.pods.values():
            use[card(pod.containers[0].devices[GPU][0])] += 1
        new = world.kubelet.admit(f"placed-{number}", {GPU: 1})
        assert use[card(new.containers[0].devices[GPU][0])] == min(use.values())


def test_among_equal_cards_the_one_that_the_scheduler_sees_in_use_comes_last(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--no-gpumem")
    first, second = sorted(world.gpus)
    preloaded = {"LD_PRELOAD": str(native.interposer()), "CUDA_VISIBLE_DEVICES": first}
    with subprocess.Popen(
        [sys.executable, "-c", OUTSIDER],
        env={**world.environment, **preloaded},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == b"allocated\n"
        assert card(world.kubelet.admit("p", {GPU: 1}).containers[0].devices[GPU][0]) == second
        task.communicate()


def test_a_pod_that_ended_and_is_still_listed_counts_no_more(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--no-gpumem")
    ended = world.kubelet.admit("job", {GPU: 1})
    other = world.kubelet.admit("other", {GPU: 1})
    at = card(ended.containers[0].devices[GPU][0])
    assert card(other.containers[0].devices[GPU][0]) != at
    world.kubelet.end("job")
    assert card(world.kubelet.admit("next", {GPU: 1}).containers[0].devices[GPU][0]) == at


def test_unknown_devices_are_refused_by_name(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--no-gpumem")
    gpu = world.gpus[0]
    for name in ("", "GPU-nobody__1", "nonsense", f"{gpu}__0", f"{gpu}__11", f"{gpu}__-1", f"{gpu}__²", "x" * 10_000):
        with pytest.raises(grpc.RpcError) as caught:
            world.kubelet.call(GPU, "Allocate", allocate(name))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"{GPU} has no {name[:80]!r}" in caught.value.details()
    world.kubelet.admit("p", {GPU: 1})  # it goes on


def test_unknown_memory_is_refused(make_world: MakeWorld) -> None:
    world = make_world()
    world.kubelet.wait_listed(GPUMEM)
    with pytest.raises(grpc.RpcError) as caught:
        world.kubelet.call(GPUMEM, "Allocate", allocate("zzzz"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_preference_for_more_than_there_is_is_refused(make_world: MakeWorld) -> None:
    world = make_world("2xT4", "--no-gpumem")
    request = api.PreferredAllocationRequest()
    request.container_requests.add(available_deviceIDs=[f"{world.gpus[0]}__1"], allocation_size=2)
    with pytest.raises(grpc.RpcError) as caught:
        world.kubelet.call(GPU, "GetPreferredAllocation", request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_card_off_the_bus_is_unhealthy_until_it_is_back(make_world: MakeWorld) -> None:
    world = make_world()
    kubelet = world.kubelet
    kubelet.wait_listed(GPU, GPUMEM)
    world.lose_gpu(world.gpus[0])
    kubelet.wait_for(lambda: kubelet.allocatable(GPU) == 10 and kubelet.allocatable(GPUMEM) == T4_MIB, "loss")
    assert kubelet.capacity(GPU) == 20
    assert card(kubelet.admit("p", {GPU: 1}).containers[0].devices[GPU][0]) == world.gpus[1]
    with pytest.raises(grpc.RpcError, match="does not answer"):
        kubelet.call(GPU, "Allocate", allocate(f"{world.gpus[0]}__1"))
    world.lose_gpu(world.gpus[0], lost=False)
    kubelet.wait_for(lambda: kubelet.allocatable(GPU) == 20 and kubelet.allocatable(GPUMEM) == 2 * T4_MIB, "recovery")
    assert card(kubelet.admit("q", {GPU: 1}).containers[0].devices[GPU][0]) == world.gpus[0]


def test_the_vendors_plugin_on_the_node_is_said(make_world: MakeWorld) -> None:
    world = make_world("1xT4", "--no-gpumem")
    (world.kubelet.plugins / "nvidia-gpu.sock").touch()
    world.plugin_said("The vendor's device plugin is on this node too (nvidia-gpu.sock)")


def test_a_second_plugin_refuses_and_names_the_first(make_world: MakeWorld) -> None:
    world = make_world("1xT4", "--no-gpumem")
    first, log = world.plugin, world.plugin_log.read_text()
    assert first is not None
    world.start_plugin()
    second, world.plugin = world.plugin, first
    assert second is not None
    assert second.wait(20) == 2
    assert f"(process {first.pid}): stop it first" in world.plugin_log.read_text()[len(log) :]
    world.kubelet.admit("p", {GPU: 1})


def test_of_two_plugins_that_start_at_once_one_stays(make_world: MakeWorld) -> None:
    world = make_world("1xT4")
    world.kubelet.wait_listed(GPU, GPUMEM)
    for _ in range(3):
        world.kill_plugin()
        before = len(world.kubelet.registrations)
        started = []
        for _ in range(2):
            world.start_plugin()
            assert world.plugin is not None
            started.append(world.plugin)
        wait_for("the end of one", lambda both=tuple(started): any(plugin.poll() is not None for plugin in both))
        (world.plugin,) = [plugin for plugin in started if plugin.poll() is None]
        assert sorted(plugin.poll() or 0 for plugin in started) == [0, 2]
        world.kubelet.wait_listed(GPU, GPUMEM, after=before)


@pytest.mark.parametrize("left", ["socket", "file"])
def test_what_an_earlier_plugin_left_behind_is_replaced(make_world: MakeWorld, left: str) -> None:
    world = make_world("1xT4", "--no-gpumem")
    world.kill_plugin()
    path = world.kubelet.plugins / "nvshare-gpu.sock"
    path.unlink(missing_ok=True)
    if left == "file":
        path.write_text("no socket")
    else:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    before = len(world.kubelet.registrations)
    world.start_plugin()
    world.kubelet.wait_listed(GPU, after=before)


def test_the_plugin_waits_for_a_kubelet_that_is_not_there_yet(make_world: MakeWorld) -> None:
    world = make_world("1xT4", "--no-gpumem")
    world.kill_plugin()
    world.kubelet.remove()
    before = len(world.kubelet.registrations)
    world.start_plugin()
    world.plugin_said("waiting for a kubelet")
    world.kubelet.start()
    world.kubelet.wait_listed(GPU, after=before)


def test_pods_keep_what_they_have_over_restarts_of_the_kubelet(make_world: MakeWorld) -> None:
    world = make_world("2xT4")
    pods = [world.create(f"p{number}", gpumem=100) for number in range(3)]
    before = [world.devices(pod) for pod in pods]
    for _ in range(3):
        world.restart_kubelet()
    assert [world.devices(pod) for pod in pods] == before
    new = world.create("new", gpumem=100)
    assert not set(world.devices(new)) & {device for devices in before for device in devices}


def test_the_end_of_the_plugin_leaves_no_socket(make_world: MakeWorld) -> None:
    world = make_world("1xT4")
    world.kubelet.wait_listed(GPU, GPUMEM)
    assert world.plugin is not None
    world.plugin.terminate()
    assert world.plugin.wait(20) == 0
    assert not list(world.kubelet.plugins.glob("nvshare*"))


def test_memory_that_was_given_to_two_is_held_by_one_until_it_leaves(make_world: MakeWorld) -> None:
    """A kubelet that forgets the order of things, or a plugin that was restarted between two allocations."""
    world = make_world("1xT4")
    kubelet = world.kubelet
    kubelet.wait_listed(GPU, GPUMEM)
    first = kubelet.admit("first", {GPU: 1, GPUMEM: 9000})
    kubelet.start_containers(first)
    second = kubelet.admit("second", {GPU: 1, GPUMEM: 1000})
    second.containers[0].devices[GPUMEM] += tuple(f"x{number}" for number in range(8000))
    with pytest.raises(grpc.RpcError, match=r"GPU .* has 5913 of 14913 MiB left to promise, and pod default/second"):
        kubelet.start_containers(second)
    kubelet.start_containers(first)  # its container crashed, say: it is not the one that waits
    kubelet.delete("first")
    kubelet.start_containers(second)


def run_plugin(directory: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nvshare.cli.device_plugin", "--kubelet-dir", str(directory), *options],
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_node_without_cards_offers_none_and_stays(directory: Path) -> None:
    kubelet = Kubelet(directory)
    kubelet.start()
    plugin = run_plugin(directory)
    try:
        kubelet.wait_listed(GPU, GPUMEM)
        assert kubelet.capacity(GPU) == kubelet.capacity(GPUMEM) == 0
        assert plugin.poll() is None
    finally:
        plugin.terminate()
        _, said = plugin.communicate(timeout=20)
        kubelet.stop()
    assert plugin.returncode == 0
    assert "No GPU on this node (no NVIDIA driver answers" in said


def test_without_grpc_the_command_says_what_to_install(directory: Path) -> None:
    (directory / "grpc.py").write_text("raise ModuleNotFoundError('No module named grpc', name='grpc')")
    plugin = run_plugin(directory, PYTHONPATH=str(directory))
    _, said = plugin.communicate(timeout=20)
    assert plugin.returncode == 2
    assert "grpc is missing; the Kubernetes part needs: pip install 'nvshare[kube]'" in said
    assert "Traceback" not in said


def test_a_directory_in_the_way_is_said(directory: Path) -> None:
    in_the_way = directory / "device-plugins" / "nvshare-gpu.sock"
    in_the_way.mkdir(parents=True)
    plugin = run_plugin(directory)
    _, said = plugin.communicate(timeout=20)
    assert plugin.returncode == 2
    assert f"{in_the_way} is a directory: remove it" in said


def test_a_path_that_is_too_long_is_said(directory: Path) -> None:
    long = directory / ("x" * 80)
    (long / "device-plugins").mkdir(parents=True)
    plugin = run_plugin(long)
    _, said = plugin.communicate(timeout=20)
    assert plugin.returncode == 2
    assert "cannot be served" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_settings_that_cannot_be_used_are_said_and_replaced(directory: Path) -> None:
    plugin = run_plugin(directory, NVSHARE_VIRTUAL_DEVICES="zero", NVSHARE_PLACEMENT="middle")
    assert plugin.stderr is not None
    lines = [plugin.stderr.readline(), plugin.stderr.readline()]
    plugin.terminate()
    plugin.communicate(timeout=20)
    assert "NVSHARE_VIRTUAL_DEVICES='zero' cannot be used" in lines[0]
    assert "NVSHARE_PLACEMENT='middle' cannot be used" in lines[1]


def test_the_registration_is_repeated_when_nobody_follows(make_world: MakeWorld) -> None:
    """Within some seconds, without any file that changed."""
    world = make_world("1xT4", "--no-gpumem")
    before = len(world.kubelet.registrations)
    world.kubelet.forget(GPU)
    wait_for("a second registration", lambda: len(world.kubelet.registrations) > before)
