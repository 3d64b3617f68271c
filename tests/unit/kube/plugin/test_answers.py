"""What goes over the wire to and from the kubelet, in our terms."""

from __future__ import annotations

from pathlib import Path

from nvshare.kube.api import podresources_pb2 as resources
from nvshare.kube.plugin import response
from nvshare.kube.plugin.load import load_of
from nvshare.kube.plugin.podresources import picture_of
from nvshare.kube.plugin.simulated import SimulatedNode

PLACES = response.Places(Path("/host/lib"), Path("/host/run"))


def test_a_container_gets_its_card_the_library_and_the_socket() -> None:
    container = response.for_gpus(["GPU-b__2", "GPU-a__1", "GPU-b__1"], PLACES)
    assert dict(container.envs) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "LD_PRELOAD": "/usr/lib/nvshare/libnvshare.so",
        "NVSHARE_SOCK": "/var/run/nvshare/scheduler.sock",
    }
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in container.mounts] == [
        ("/usr/lib/nvshare", "/host/lib", True),
        ("/var/run/nvshare", "/host/run", True),
    ]
    assert not container.cdi_devices


def test_with_cdi_the_runtime_is_told_by_name_and_not_by_variable() -> None:
    container = response.for_gpus(["GPU-a__1"], PLACES, response.CDI)
    assert [device.name for device in container.cdi_devices] == ["nvidia.com/gpu=GPU-a"]
    assert container.envs["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_on_a_simulated_node_a_container_gets_the_simulated_driver() -> None:
    extra = SimulatedNode(Path("/run/node"), Path("/opt/driver"))
    container = response.for_gpus(["GPU-a__1"], PLACES, extra=extra)
    assert container.envs["NVSHARE_SIM_NODE"] == "/run/node"
    assert container.envs["LD_LIBRARY_PATH"] == "/opt/driver"
    assert container.envs["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert {(mount.host_path, mount.read_only) for mount in container.mounts} >= {
        ("/run/node", False),
        ("/opt/driver", True),
    }


def test_memory_is_the_quota_to_start_with() -> None:
    assert dict(response.for_memory(4096).envs) == {"NVSHARE_GPU_MEMORY_LIMIT": "4096Mi"}


def test_a_picture_sums_a_pods_containers_and_keeps_pods_without_devices() -> None:
    listed = resources.ListPodResourcesResponse()
    first = listed.pod_resources.add(name="p", namespace="n")
    for number in (1, 2):
        container = first.containers.add(name=f"c{number}")
        container.devices.add(resource_name="nvshare.com/gpu", device_ids=[f"GPU-a__{number}"])
        container.devices.add(resource_name="nvshare.com/gpumem", device_ids=[f"000{number}"])
        container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-b::1", "GPU-b::2"])
        container.devices.add(resource_name="example.com/other", device_ids=["x"])
    listed.pod_resources.add(name="q", namespace="n")
    picture = picture_of(listed)
    assert picture.names == {"n/p", "n/q"}
    assert picture.pods[0].devices == ("GPU-a__1", "GPU-a__2")
    assert picture.pods[0].memory == ("0001", "0002")
    assert picture.tenants == {"GPU-a": 2, "GPU-b": 1}


def test_load_is_what_clients_do_on_each_card() -> None:
    place = {"uuid": "GPU-a", "delivered": [1.0, 0.5, 0.1], "allocated": 7}
    status = {"clients": [{"gpus": [place]}, {"gpus": [place, {**place, "uuid": "GPU-b"}]}, {"gpus": []}]}
    assert load_of(status) == {"GPU-a": (1.0, 14), "GPU-b": (0.5, 7)}
    assert load_of({}) == {}
