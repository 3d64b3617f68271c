"""What facts mean: every fault has its state and its remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nvshare.doctor.facts import CudaView, Facts, Holder, Kubelet, NvmlDevice, NvmlProcess, Preload, SocketFile
from nvshare.doctor.findings import Finding, State, exit_code
from nvshare.doctor.judge import CHECKS, judge
from tests.unit.doctor.doctor_facts import ARM, CARD, CARDS, GIB, LIBRARY, WELL, X86


def changed(facts: Facts, part: str, **changes: Any) -> Facts:
    return replace(facts, **{part: replace(getattr(facts, part), **changes)})


def with_card(**changes: Any) -> Facts:
    """The first card is otherwise."""
    return changed(WELL, "nvml", devices=(replace(CARD, **changes), WELL.nvml.devices[1]))


def holder(**changes: Any) -> Facts:
    return replace(WELL, holders=(replace(Holder(CARDS[0], 42, "train", 4 * GIB), **changes),))


def only(facts: Facts) -> Finding:
    """The one finding that is not ok."""
    (found,) = [finding for finding in judge(facts) if finding.state is not State.OK]
    return found


def worst_of(facts: Facts, check: str) -> Finding:
    return max((finding for finding in judge(facts) if finding.check == check), key=lambda finding: finding.state)


def test_a_machine_on_which_all_is_well_has_a_word_on_everything_but_kubernetes() -> None:
    findings = judge(WELL)
    assert {finding.state for finding in findings} == {State.OK}
    assert [finding.check for finding in findings] == [name for name in CHECKS if name != "Kubernetes"]
    assert exit_code(findings) == 0


@pytest.mark.parametrize(("state", "code"), [("OK", 0), ("NOTE", 0), ("WARNING", 1), ("PROBLEM", 2)])
def test_the_exit_code_is_that_of_the_worst(state: str, code: int) -> None:
    findings = [Finding("a", State.OK, "", ""), Finding("b", State[state], "", ""), Finding("c", State.OK, "", "")]
    assert exit_code(findings) == code
    assert exit_code([]) == 0


VMM_LESS = (replace(WELL.native.devices[0], virtual_memory=False),)
MIGS = ("MIG-1", "MIG-2")
ONE_FAULT: dict[str, tuple[Facts, State, str, str, str]] = {
    # name: facts, state, check, what is seen, what to do
    "old driver": (changed(WELL, "native", version=10010), State.PROBLEM, "driver", "CUDA 10.1", "update"),
    "unchecked driver": (changed(WELL, "native", version=11020), State.WARNING, "driver", "11.8", "update"),
    "new driver": (changed(WELL, "native", version=14000), State.NOTE, "driver", "CUDA 14.0", "newer nvshare"),
    "no NVML": (
        changed(WELL, "nvml", error="gone", devices=()), State.PROBLEM, "NVML", "CUDA works, NVML does not",
        "libnvidia-ml",
    ),
    "driver updated": (
        changed(WELL, "nvml", error="mismatch", error_code=18, devices=()), State.PROBLEM, "NVML", "mismatch", "reboot",
    ),
    "exclusive": (
        with_card(compute_mode=3), State.PROBLEM, "compute mode", "card 0 is exclusive", "nvidia-smi -i 0 -c DEFAULT",
    ),
    "MIG, no instance": (
        with_card(mig=(1, 1)), State.PROBLEM, "MIG", "card 0 is in MIG mode and has no instance", "-mig 0",
    ),
    "MIG pending": (with_card(mig=(0, 1)), State.WARNING, "MIG", "on after the next reset", "--gpu-reset -i 0"),
    "slowed down": (with_card(clock_reasons=0x48), State.WARNING, "clocks", "hardware thermal slowdown", "cool it"),
    "clocks set": (with_card(clock_reasons=0x3), State.NOTE, "clocks", "set for applications", "-rgc"),
    "left behind": (with_card(used=4 * GIB), State.WARNING, "on the cards", "4.0 GiB of card 0", "--gpu-reset -i 0"),
    "stranger": (
        holder(), State.WARNING, "on the cards", "train (pid 42) holds 4.0 GiB of card 0", "nvshare run",
    ),
    "unsized stranger": (holder(bytes=None), State.WARNING, "on the cards", "the driver does not tell", "nvshare run"),
    "unseen holder": (holder(name=""), State.WARNING, "on the cards", "cannot be seen from here", "another container"),
    "desktop": (holder(graphics=True), State.NOTE, "on the cards", "train (pid 42)", "it draws"),
    "stopped task": (holder(stopped=True), State.WARNING, "on the cards", "(pid 42) is stopped", "kill -CONT 42"),
    "kept lease": (
        changed(WELL, "scheduler", kept={"ab": "process 9 lives"}), State.WARNING, "on the cards",
        "lease ab has ended, and its place is not free: process 9 lives", "end what is left",
    ),
    "unmanaged task": (holder(preloaded=True), State.WARNING, "on the cards", "although", "start it again"),
    "stopped scheduler": (
        changed(WELL, "scheduler", answer="silent", pid=42, stopped=True, cards=()), State.PROBLEM, "scheduler",
        "was stopped (process 42)", "kill -CONT 42",
    ),
    "stuck scheduler": (
        changed(WELL, "scheduler", answer="silent", pid=42, detail="timed out", cards=()), State.PROBLEM, "scheduler",
        "does not answer in time (timed out)", "end it (kill -9 42) and start it again",
    ),
    "not built": (
        changed(WELL, "library", path=None, missing="not built"), State.PROBLEM, "library", "not built", "make native",
    ),
    "library of another machine": (
        changed(WELL, "library", machine=ARM), State.PROBLEM, "library", "is for arm64, programs here are for x86-64",
        "architecture",
    ),
    "library cannot be loaded": (
        changed(WELL, "shared", mapped=(), interposer=None, loader=("GLIBC_2.99 not found",)), State.PROBLEM, "library",
        "cannot be preloaded (GLIBC_2.99 not found)", "built for this system",
    ),
    "library kills programs": (
        changed(WELL, "shared", failure="was ended by SIGSEGV"), State.PROBLEM, "library", "SIGSEGV", "report",
    ),
    "library is passed by": (
        changed(WELL, "shared", interposer=None), State.PROBLEM, "library", "CUDA is reached without it", "comes first",
    ),
    "inactive here": (
        changed(WELL, "here", interposer=None), State.PROBLEM, "this shell", "not active", "nvshare run",
    ),
    "nothing preloaded": (
        changed(WELL, "library", preloads=()), State.NOTE, "this shell", "not preloaded", "nvshare env",
    ),
    "another's preload is gone": (
        changed(WELL, "library", preloads=(*WELL.library.preloads, Preload("/x.so", "LD_PRELOAD", False, None))),
        State.WARNING, "this shell", "/x.so, which is not there", "take it out of LD_PRELOAD",
    ),
    "other release": (
        changed(WELL, "scheduler", release="0.9"), State.WARNING, "scheduler", "of release 0.9", "same release",
    ),
    "unknown card": (
        changed(WELL, "scheduler", cards=CARDS[:1]), State.WARNING, "scheduler", CARDS[1], "start it again",
    ),
    "another's scheduler": (
        changed(WELL, "scheduler", cards=CARDS[:1], elsewhere={CARDS[1]: "process 9 of root"}), State.PROBLEM,
        "scheduler", "process 9 of root", "use that",
    ),
    "foreign socket": (
        changed(WELL, "scheduler", file=SocketFile(True, "eve", False, 0o666, True)), State.WARNING, "scheduler",
        "belongs to eve", "unset NVSHARE_SOCK",
    ),
    "open directory": (
        changed(WELL, "scheduler", file=SocketFile(True, "me", True, 0o600, True)), State.WARNING, "scheduler",
        "others may replace", "chmod go-w",
    ),
    "other protocol": (
        changed(WELL, "scheduler", answer="other version", detail="speaks version 1"), State.PROBLEM, "scheduler",
        "speaks version 1", "same release",
    ),
    "dead system socket": (
        changed(WELL, "scheduler", answer="dead", chosen_by="system"), State.PROBLEM, "scheduler", "left behind",
        "nvshare-scheduler (as root)",
    ),
    "bad setting": (changed(WELL, "environment", unusable=("X=1",)), State.WARNING, "settings", "X=1", "unset"),
    "MPS": (changed(WELL, "host", mps=(5, 6)), State.WARNING, "MPS", "process 5, 6", "echo quit"),
    "small container": (
        changed(WELL, "host", memory_limit=4 * GIB), State.WARNING, "host memory", "4.0 GiB of host memory",
        "resources.limits.memory",
    ),
    "small host": (changed(WELL, "host", memory_budget=12 * GIB), State.NOTE, "host memory", "12.0 GiB", "_HOST_"),
    "few addresses": (changed(WELL, "host", address_limit=GIB), State.PROBLEM, "limits", "ulimit -v", "unlimited"),
    "vendor's plugin too": (
        changed(WELL, "host", kubelet=Kubelet("/d", True, ("kubelet.sock", "nvidia-gpu.sock", "nvshare.sock"))),
        State.WARNING, "Kubernetes", "nvidia-gpu.sock", "keep it off this node",
    ),
    "vendor's plugin only": (
        changed(WELL, "host", kubelet=Kubelet("/d", True, ("nvidia-gpu.sock",))), State.NOTE, "Kubernetes",
        "nvshare's does not", "device-plugin.yaml",
    ),
    "no plugin": (
        changed(WELL, "host", kubelet=Kubelet("/d", True, ())), State.NOTE, "Kubernetes", "no device plugin", "apply",
    ),
    "plugins not readable": (
        changed(WELL, "host", kubelet=Kubelet("/d", False, ())), State.NOTE, "Kubernetes", "cannot be read", "as root",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_FAULT)
def test_one_fault_is_one_finding_with_its_remedy(name: str) -> None:
    facts, state, check, seen, remedy = ONE_FAULT[name]
    found = only(facts)
    assert (found.check, found.state) == (check, state)
    assert seen in found.seen
    assert remedy in found.remedy


def test_a_card_without_the_virtual_memory_api_is_named() -> None:
    found = worst_of(changed(WELL, "native", devices=(*VMM_LESS, WELL.native.devices[1])), "driver")
    assert found.state is State.WARNING
    assert CARDS[0] in found.seen


@pytest.mark.parametrize(
    ("host", "error", "remedy"),
    [
        ({}, "CUDA_ERROR_NO_DEVICE (100)", "nvidia-smi"),
        ({"container": "pod"}, "CUDA_ERROR_NO_DEVICE (100)", "nvshare.com/gpu"),
        ({"closed_devices": ("/dev/nvidia0",)}, "CUDA_ERROR_NO_DEVICE (100)", "/dev/nvidia0"),
        ({}, "CUDA_ERROR_STUB_LIBRARY (34)", "stubs"),
        ({}, "CUDA_ERROR_UNKNOWN (999)", "nvidia-uvm"),
    ],
)
def test_why_cuda_does_not_start_decides_what_to_do(host: dict[str, Any], error: str, remedy: str) -> None:
    found = worst_of(changed(replace(WELL, native=CudaView(init_error=error)), "host", **host), "driver")
    assert found.state is State.PROBLEM
    assert error in found.seen
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("host", "remedy"),
    [({}, "install the NVIDIA driver"), ({"kernel_module": True}, "ldconfig"), ({"container": "pod"}, "--gpus all")],
)
def test_where_the_driver_is_missing_decides_what_to_do(host: dict[str, Any], remedy: str) -> None:
    facts = changed(replace(WELL, native=CudaView(load_error="no such file")), "host", **host)
    assert remedy in worst_of(facts, "driver").remedy


def test_what_needs_a_driver_is_silent_without_one() -> None:
    gone = CudaView(failure="did not answer within 2 s")
    facts = replace(WELL, native=gone, here=gone, shared=gone, nvml=replace(WELL.nvml, failure="hung", devices=()))
    assert {finding.check for finding in judge(facts) if finding.state is not State.OK} == {"driver", "NVML"}
    silent = {"card order", "CUDA_VISIBLE_DEVICES", "compute mode", "MIG", "clocks", "on the cards", "library"}
    assert not silent & {finding.check for finding in judge(facts)}


def test_mig_instances_are_cards_of_their_own() -> None:
    facts = with_card(mig=(1, 1), instances=MIGS)
    facts = changed(facts, "scheduler", cards=(*MIGS, CARDS[1]))
    found = only(facts)
    assert (found.check, found.state) == ("MIG", State.NOTE)
    assert "2 MIG instances" in found.seen
    # AND a program sees one of them
    found = worst_of(changed(facts, "environment", visible="MIG-1,MIG-2"), "CUDA_VISIBLE_DEVICES")
    assert found.state is State.WARNING
    assert worst_of(changed(facts, "environment", visible="MIG-2"), "CUDA_VISIBLE_DEVICES").state is State.OK


@pytest.mark.parametrize("value", ["-1", "NoDevFiles", "0,0", " "])
def test_visible_devices_that_leave_no_card(value: str) -> None:
    facts = changed(changed(WELL, "environment", visible=value), "here", devices=())
    assert worst_of(facts, "CUDA_VISIBLE_DEVICES").state is State.PROBLEM


@pytest.mark.parametrize("value", ["0", "1,0", CARDS[1], "GPU-aaaa"])
def test_visible_devices_that_name_cards(value: str) -> None:
    assert worst_of(changed(WELL, "environment", visible=value), "CUDA_VISIBLE_DEVICES").state is State.OK


def test_a_card_that_cuda_leaves_out_is_no_matter_of_order() -> None:
    found = worst_of(changed(WELL, "native", devices=WELL.native.devices[1:]), "card order")
    assert found.state is State.WARNING
    assert "NVML lists 2 cards, CUDA 1" in found.seen


def test_memory_that_the_scheduler_knows_of_was_not_left_behind() -> None:
    facts = with_card(used=4 * GIB)
    assert {finding.state for finding in judge(changed(facts, "scheduler", accounted={CARDS[0]: 4 * GIB}))} == {
        State.OK
    }


@pytest.mark.parametrize("size", [None, 4 * GIB])
def test_memory_of_listed_processes_was_not_left_behind(size: int | None) -> None:
    facts = with_card(used=4 * GIB, processes=(NvmlProcess(42, size, False),))
    assert {finding.state for finding in judge(facts)} == {State.OK}


def test_a_shell_that_is_to_take_part_and_does_not_is_a_problem() -> None:
    facts = changed(WELL, "environment", takes_part=("NVSHARE_SOCK",))
    assert only(changed(facts, "library", preloads=())).state is State.PROBLEM
    assert only(changed(facts, "scheduler", answer="absent", file=None)).state is State.PROBLEM
    assert only(changed(facts, "scheduler", answer="dead")).state is State.PROBLEM
    # AND without that wish it is none
    assert only(changed(WELL, "scheduler", answer="absent", file=None)).state is State.NOTE
    assert only(changed(WELL, "scheduler", answer="dead")).state is State.WARNING


def test_a_preloaded_library_of_another_machine_does_nothing() -> None:
    found = only(changed(WELL, "library", preloads=(Preload(LIBRARY, "LD_PRELOAD", True, ARM),)))
    assert (found.check, found.state) == ("this shell", State.PROBLEM)
    # AND what the loader completes itself is not judged by its name
    searched = Preload("/usr/$LIB/libfoo.so", "LD_PRELOAD", True, None, searched=True)
    facts = changed(WELL, "library", preloads=(searched, Preload(LIBRARY, "LD_PRELOAD", True, X86)))
    assert {finding.state for finding in judge(facts)} == {State.OK}


def test_limits_of_a_container_are_named() -> None:
    facts = changed(WELL, "host", container="pod", shm_total=64 << 20)
    found = [finding for finding in judge(facts) if finding.check == "limits"]
    assert [finding.state for finding in found] == [State.NOTE, State.NOTE]
    assert "ulimit memlock" in found[0].remedy
    assert "--shm-size" in found[1].remedy


def test_every_warning_and_problem_has_a_remedy() -> None:
    for facts, *_ in ONE_FAULT.values():
        assert all(finding.remedy for finding in judge(facts) if finding.state >= State.WARNING)


def test_a_node_of_unlike_cards_is_counted_alike_when_told_to() -> None:
    other = NvmlDevice("GPU-cccccccc-2", "H100", 80 * GIB, 0)
    facts = changed(WELL, "nvml", devices=(*WELL.nvml.devices, other))
    fastest_first = (replace(WELL.native.devices[0], uuid=other.uuid), *WELL.native.devices)
    found = worst_of(changed(facts, "native", devices=fastest_first), "card order")
    assert found.state is State.WARNING
    assert f"card 0 of nvidia-smi ({CARDS[0]}) is card 1 of CUDA" in found.seen
