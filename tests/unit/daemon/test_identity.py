from __future__ import annotations

import os
import socket

import pytest

from nvshare.daemon import identity

UID = "3f2a9c1e-7b54-4d0a-9e61-0c5d1f7a8b22"
UNDER = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
CONTAINER = "9" * 64

CONTAINERD = f"cri-containerd-{CONTAINER}.scope"
BURSTABLE = f"kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice"
CGROUPFS = f"/kubepods/burstable/pod{UID}/{CONTAINER}"
KUBELET = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"

IN_A_POD = {
    "v2, systemd, containerd": f"0::/kubepods.slice/{BURSTABLE}/{CONTAINERD}",
    "v2, systemd, CRI-O": f"0::/kubepods.slice/{BURSTABLE}/crio-{CONTAINER}.scope",
    "v2, systemd, CRI-O, below": f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{CONTAINER}.scope/container",
    "v2, systemd, guaranteed": f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/{CONTAINERD}",
    "v2, cgroupfs": f"0::{CGROUPFS}",
    "v2, cgroupfs, guaranteed": f"0::/kubepods/pod{UID}/{CONTAINER}",
    "v2, cgroupfs, CRI-O": f"0::/kubepods/besteffort/pod{UID}/crio-{CONTAINER}",
    "v2, reader in a namespace, cgroupfs": f"0::/../../../burstable/pod{UID}/{CONTAINER}",
    "v2, reader in a namespace, guaranteed": f"0::/../../pod{UID}/{CONTAINER}",
    "v2, reader in a namespace, systemd": f"0::/../../../{BURSTABLE}/{CONTAINERD}",
    "v2, kubelet below a parent": f"0::{KUBELET}/kubelet-kubepods-burstable-pod{UNDER}.slice/{CONTAINERD}",
    "v2, a node in a container": f"0::/docker/{CONTAINER}/kubelet/kubepods/besteffort/pod{UID}/{CONTAINER}",
    "v1, cgroupfs": f"12:pids:{CGROUPFS}\n11:memory:{CGROUPFS}\n1:name=systemd:{CGROUPFS}",
    "v1, systemd, containerd": f"11:memory:/kubepods.slice/{BURSTABLE}/{CONTAINERD}\n0::/",
    "v1 hybrid, CRI-O, systemd": (
        f"12:misc:/\n11:memory:/kubepods.slice/{BURSTABLE}/crio-{CONTAINER}.scope\n"
        f"1:name=systemd:/kubepods.slice/{BURSTABLE}/crio-{CONTAINER}.scope\n0::/system.slice/crio.service"
    ),
    "v1 hybrid, the pod only in later lines": (
        f"13:rdma:/\n12:misc:/\n11:cpuset:{CGROUPFS}\n1:name=systemd:/user.slice/user-0.slice\n0::/user.slice"
    ),
    "v1, cgroupfs, CRI-O": f"4:memory:/kubepods/besteffort/pod{UID}/crio-conmon-{CONTAINER}\n0::/",
    "v2, systemd, docker": f"0::/kubepods.slice/{BURSTABLE}/docker-{CONTAINER}.scope",
    "v2, systemd, a group of its own inside": f"0::/kubepods.slice/{BURSTABLE}/{CONTAINERD}/system.slice/x.service",
    "v1, containerd's own parent": (
        f"11:devices:/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{CONTAINER}"
    ),
}


@pytest.mark.parametrize("case", IN_A_POD)
def test_pod_is_found_in_every_known_layout(case):
    assert identity.pod_uid(IN_A_POD[case] + "\n") == UID


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{STATIC}/{CONTAINER}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/{CONTAINERD}",
        f"/../../../kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/{CONTAINERD}",
    ],
)
def test_static_pod_has_a_uid_without_dashes(path):
    assert identity.pod_uid(f"0::{path}") == STATIC


OUTSIDE = {
    "a login session": "0::/user.slice/user-1000.slice/session-3.scope",
    "a service": "0::/system.slice/ssh.service",
    "a plain container": f"0::/system.slice/docker-{CONTAINER}.scope",
    "the root": "0::/",
    "nothing": "",
    "not a cgroup file": "rubbish",
    "a user who made a group of that name": f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/x",
    "the same, seen from a container": f"0::/../../../../user.slice/user-1000.slice/x.service/kubepods/pod{UID}/x",
    "the same with the name of a slice": f"0::/../../user.slice/user-1000.slice/kubepods-pod{UNDER}.slice/x",
    "another container of the pod that looks": f"0::/../{CONTAINERD}",
    "a group with no known parent": f"0::/mine/pod{UID}/x",
    "not quite a uid": "0::/kubepods/burstable/pod1234/x",
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_no_pod_elsewhere(case):
    assert identity.pod_uid(OUTSIDE[case]) is None


OTHER = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    "inside",
    [
        f"kubepods/pod{OTHER}/x",
        f"kubepods.slice/kubepods-pod{OTHER.replace('-', '_')}.slice/x",
        f"kubepods-pod{OTHER.replace('-', '_')}.slice:cri-containerd:x",
        f"../pod{OTHER}/x",
    ],
)
@pytest.mark.parametrize("outside", [f"/kubepods/pod{UID}/{CONTAINER}", f"/kubepods.slice/{BURSTABLE}/{CONTAINERD}"])
def test_pod_that_nests_groups_stays_itself(outside, inside):
    assert identity.pod_uid(f"0::{outside}/{inside}") == UID


@pytest.mark.parametrize("name", ["python", "a b", "(", ")", ") S 1 (", "x) R 99 ("])
def test_parent_is_found_whatever_the_process_is_called(name):
    assert identity.parent_pid(f"4711 ({name}) S 42 4711 4711 0 -1 4194560 1 2 3") == 42


def test_ancestry_goes_up_to_init_and_never_in_circles():
    parents = {5: 4, 4: 1, 1: 0}
    assert list(identity.ancestry(5, parents.__getitem__)) == [5, 4, 1]
    assert len(list(identity.ancestry(7, lambda pid: 7))) == 1024


def test_ancestry_of_this_process_contains_its_parent():
    assert list(identity.ancestry(os.getpid()))[:2] == [os.getpid(), os.getppid()]


def test_a_scheduler_inside_a_pod_sees_nobody_in_it():
    pods = {os.getpid(): "ours", os.getppid(): "ours", 1: "theirs"}
    kernel = identity.Kernel(pods.get)
    assert [kernel.process(pid).pod for pid in (os.getpid(), os.getppid(), 1)] == [None, None, "theirs"]
    assert kernel.process(os.getpid()).ancestors[:2] == (os.getpid(), os.getppid())


def test_kernel_says_who_is_at_the_other_end():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = identity.peer_of(ours)
        assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
        descriptor = identity.peer_pidfd(ours, peer)
        assert descriptor is not None
        os.close(descriptor)


@pytest.mark.parametrize(
    ("peer", "own_pod", "pod", "allowed"),
    [
        (identity.Peer(os.getpid(), os.geteuid()), None, None, True),
        (identity.Peer(os.getpid(), 0), None, None, True),
        (identity.Peer(os.getpid(), 54321), None, None, False),
        (identity.Peer(os.getpid(), 0), None, UID, False),
        (identity.Peer(os.getpid(), 0), UID, UID, True),
        (identity.Peer(0, 0), None, None, False),
        (identity.Peer(2**22 + 1, 0), None, None, False),
    ],
)
def test_root_of_somebody_elses_container_is_no_operator(peer, own_pod, pod, allowed):
    assert identity.is_operator(peer, pod, own_pod) is allowed


def test_a_process_is_named_by_its_number_in_the_askers_namespace():
    assert identity.pid_seen_by(os.getpid(), os.getppid()) == os.getppid()
    assert identity.pid_seen_by(0, os.getpid()) == identity.pid_seen_by(os.getpid(), 0) == 0
    assert identity.innermost_pid("Name:\tpython\nNSpid:\t4711\t17\t3\nThreads:\t1\n") == 3
    assert identity.innermost_pid("Name:\tpython\n") == 0
