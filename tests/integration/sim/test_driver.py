"""Entry points, devices, graphs, forks, counters and NVML of the simulated driver."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvshare.gpu.sim import Setup, SimNode
from nvshare.procfs import children

ROOT = Path(__file__).parents[3]
Run = Callable[..., str]
Start = Callable[..., Any]


def test_every_hooked_function_is_exported_and_found_by_name(node: SimNode, run: Run) -> None:
    text = (ROOT / "native/include/hooks.def").read_text().split("/* ---- submits: launches", 1)[1]
    symbols = []
    for kind, name, second in re.findall(r"^NVS_(\w+)\(\s*(\w+),\s*(\w*)", text, re.M):
        symbols += [second] if kind == "CALL" else [name, name + second] if kind.endswith("_PT") else [name]
    assert len(symbols) > 150
    run(
        node,
        f"""
        library = ctypes.CDLL("libcuda.so.1")
        missing = [name for name in {symbols!r} if not hasattr(library, name)]
        assert not missing, missing
        """,
    )


def test_get_proc_address_knows_versions_and_flags(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver(init=False)
        def find(name, version=13000, flags=0):
            pointer, status = c_void_p(), c_int(-1)
            args = c_char_p(name.encode()), byref(pointer), c_int(version), flags, byref(status)
            code = d.code("cuGetProcAddress_v2", *args)
            return code, pointer.value, status.value
        def at(symbol):
            return ctypes.cast(getattr(d.library, symbol), c_void_p).value
        assert find("cuMemAlloc") == (0, at("cuMemAlloc_v2"), 0)
        assert find("cuLaunchKernel", flags=2) == (0, at("cuLaunchKernel_ptsz"), 0)
        assert find("cuMemcpyHtoD", flags=2) == (0, at("cuMemcpyHtoD_v2_ptds"), 0)
        assert find("cuMemcpyHtoD", flags=1) == (0, at("cuMemcpyHtoD_v2"), 0)
        assert find("cuStreamBeginCapture", 10000) == (0, at("cuStreamBeginCapture"), 0)
        assert find("cuStreamBeginCapture") == (0, at("cuStreamBeginCapture_v2"), 0)
        assert find("cuGetProcAddress", 12000) == (0, at("cuGetProcAddress_v2"), 0)
        assert find("cuGetProcAddress", 11030) == (0, at("cuGetProcAddress"), 0)
        assert find("cuMemAllocAsync", 11000) == (500, None, 2)
        assert find("cuNoSuchThing") == (500, None, 1)
        """,
    )


def test_visible_devices_select_and_reorder_by_index_and_uuid(node: SimNode, run: Run) -> None:
    source = """
        d = Driver(context=False)
        count = c_int(); d.cuDeviceGetCount(byref(count))
        for i in range(count.value):
            uuid = ctypes.create_string_buffer(16); d.cuDeviceGetUuid_v2(uuid, c_int(i)); print(uuid.raw.hex())
        """
    plain = [uuid[4:].replace("-", "") for uuid in node.uuids]
    assert run(node, source).split() == plain
    assert run(node, source, {"CUDA_VISIBLE_DEVICES": "1,0"}).split() == plain[::-1]
    assert run(node, source, {"CUDA_VISIBLE_DEVICES": node.uuids[1][:12]}).split() == plain[1:]
    assert run(node, "assert Driver(init=False).code('cuInit', 0) == 100", {"CUDA_VISIBLE_DEVICES": ""}) == ""


def test_cuda_may_count_the_cards_in_another_order_than_nvml(make_node: Callable[..., SimNode], run: Run) -> None:
    node = make_node(setup=Setup(cuda_reversed=1))
    source = """
        d = Driver(context=False)
        count = c_int(); d.cuDeviceGetCount(byref(count))
        for i in range(count.value):
            uuid = ctypes.create_string_buffer(16); d.cuDeviceGetUuid_v2(uuid, c_int(i)); print(uuid.raw.hex())
        """
    plain = [uuid[4:].replace("-", "") for uuid in node.uuids]
    assert run(node, source).split() == plain[::-1]
    assert run(node, source, {"CUDA_VISIBLE_DEVICES": "0"}).split() == plain[1:]
    assert run(node, source, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).split() == plain


def test_a_card_in_mig_mode_without_instances_is_not_shown(make_node: Callable[..., SimNode], run: Run) -> None:
    run(make_node(setup=Setup(mig_mode=1)), "assert Driver(init=False).code('cuInit', 0) == 100")


def test_an_exclusive_card_takes_the_contexts_of_one_process(
    make_node: Callable[..., SimNode], run: Run, start: Start
) -> None:
    # GIVEN a process that has a context
    node = make_node(setup=Setup(compute_mode=3))
    first = start(node, "d = Driver(); print('there', flush=True); sys.stdin.readline()")
    assert first.line() == "there"
    # THEN another gets none, on the other card it does, and on this one when the first has gone
    create = """
        d = Driver(context=False)
        print(d.code("cuCtxCreate_v2", byref(c_void_p()), c_uint(0), c_int(DEVICE)))
        """
    assert run(node, create.replace("DEVICE", "0")) == "46\n"
    assert run(node, create.replace("DEVICE", "1")) == "0\n"
    first.tell()
    first.finish()
    assert run(node, create.replace("DEVICE", "0")) == "0\n"


def test_a_prohibited_card_takes_no_context(make_node: Callable[..., SimNode], run: Run) -> None:
    source = "print(Driver(context=False).code('cuCtxCreate_v2', byref(c_void_p()), c_uint(0), c_int(0)))"
    assert run(make_node(setup=Setup(compute_mode=2)), source) == "46\n"


def test_graphs_capture_instantiate_and_launch(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        s = d.stream()
        n = 1 << 20
        x, y = d.alloc(4 * n), d.alloc(4 * n)
        d.cuMemsetD32_v2(x, c_uint(0x3f800000), n); d.sync()
        d.cuStreamBeginCapture_v2(s, c_int(0))
        status = c_int(); d.cuStreamIsCapturing(s, byref(status)); assert status.value == 1
        d.cuMemcpyDtoDAsync_v2(y, x, 4 * n, s)
        d.add(x, x, y, n, stream=s)
        d.cuMemsetD32Async(y, c_uint(0), n, s)
        graph, exec = c_void_p(), c_void_p()
        d.cuStreamEndCapture(s, byref(graph))
        d.cuGraphInstantiateWithFlags(byref(exec), graph, 0)
        assert d.download(x, 4) == struct.pack("<f", 1), "capturing runs nothing"
        for _ in range(3):
            d.cuGraphLaunch(exec, s)
        d.cuStreamSynchronize(s)
        assert d.download(x + 4 * n - 4, 4) == struct.pack("<f", 8) and d.download(y, 4) == bytes(4)
        d.cuGraphExecDestroy(exec); d.cuGraphDestroy(graph)
        """,
    )
    counters = node.counters()[0]
    assert (counters["graph_launches"], counters["launches"]) == (3, 3)


def test_what_is_forbidden_while_a_stream_captures(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver()
        s, blocking, event = d.stream(), d.stream(0), d.event()
        graph, mode = c_void_p(), c_int(2)
        def broken(stream):
            return d.code("cuStreamEndCapture", stream, byref(graph)) == 901
        assert d.code("cuStreamBeginCapture_v2", None, c_int(0)) == 900
        d.cuStreamBeginCapture_v2(s, c_int(0)); assert d.code("cuCtxSynchronize") == 900; assert broken(s)
        d.cuStreamBeginCapture_v2(s, c_int(0)); assert d.code("cuMemAlloc_v2", byref(graph), 5) == 900; assert broken(s)
        d.cuStreamBeginCapture_v2(s, c_int(2)); assert d.code("cuStreamSynchronize", s) == 900; assert broken(s)
        d.cuStreamBeginCapture_v2(blocking, c_int(2))
        assert d.code("cuEventRecord", event, None) == 906; assert broken(blocking)
        d.cuStreamBeginCapture_v2(s, c_int(2))
        d.cuEventRecord(event, s); assert d.code("cuEventQuery", event) == 907; assert broken(s)
        d.cuStreamBeginCapture_v2(s, c_int(0))
        d.cuThreadExchangeStreamCaptureMode(byref(mode))
        d.cuCtxSynchronize(); d.alloc(100); d.spin(0.0, None)
        d.cuStreamEndCapture(s, byref(graph))
        """,
    )


def test_a_forked_child_has_no_driver(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        import os
        d = Driver(); d.alloc(100)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if d.code("cuCtxSynchronize") == 3 and d.code("cuInit", 0) == 3 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        d.sync()
        """,
    )


def test_programs_that_need_real_kernels_are_told_so(node: SimNode, start: Start) -> None:
    program = start(
        node,
        """
        d = Driver()
        module = c_void_p()
        d.cuModuleLoadData(byref(module), c_char_p(b".version 7.0 .entry other(){}"))
        assert d.code("cuModuleGetFunction", byref(module), module, c_char_p(b"other")) == 500
        assert d.code("cuModuleLoadData", byref(module), c_char_p(b"\\x7fELF....")) == 209
        assert d.code("cuGetExportTable", byref(module), byref(module)) == 801
        """,
    )
    program.finish()
    lines = program.said
    assert len(lines) == 1
    assert "runs driver-API programs with built-in kernels only (nvs_add_f32" in lines[0]


def test_counters_outlive_their_processes(node: SimNode, run: Run) -> None:
    run(
        node,
        """
        d = Driver(device=1)
        p, q = d.alloc(10 << 20), d.alloc(10 << 20)
        d.upload(p, bytes(5 << 20)); d.download(p, 3 << 20)
        d.cuMemcpyDtoD_v2(q, p, 2 << 20); d.cuMemsetD8_v2(p, c_uint(1), 1 << 20)
        d.spin(0.25); d.sync()
        """,
    )
    idle, used = node.counters()
    assert used | {"busy_ns": 0} == {
        "uuid": node.uuids[1], "memory_used": 0, "launches": 1, "graph_launches": 0, "bytes_h2d": 5 << 20,
        "bytes_d2h": 3 << 20, "bytes_d2d": 2 << 20, "bytes_memset": 1 << 20, "bytes_faulted": 0,
        "bytes_evicted": 0, "busy_ns": 0, "contexts_created": 1, "contexts": [],
    }  # fmt: skip
    assert 250_000_000 <= used["busy_ns"] < 252_000_000
    assert idle["contexts_created"] == 0


def test_nvml_shows_cards_memory_processes_and_load(node: SimNode, start: Start, run: Run) -> None:
    busy = start(node, "d = Driver(); d.alloc(3 << 30); d.spin(1e6); print('busy', flush=True); input()")
    assert busy.line() == "busy"
    out = run(
        node,
        """
        import pynvml as n
        n.nvmlInit()
        assert n.nvmlDeviceGetCount() == 2 and n.nvmlSystemGetCudaDriverVersion() == 13000
        h = n.nvmlDeviceGetHandleByIndex(0)
        uuid = n.nvmlDeviceGetUUID(h)
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)) == 0
        m, m2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
        assert m.total == m2.total == 14913 << 20 and m.used == m2.used == m.total - m.free == (1009 + 3072) << 20
        (process,) = n.nvmlDeviceGetComputeRunningProcesses(h)
        assert process.usedGpuMemory == m.used
        assert n.nvmlDeviceGetComputeMode(h) == 0 and n.nvmlDeviceGetCudaComputeCapability(h) == (7, 5)
        assert n.nvmlDeviceGetPciInfo(h).busId == "00000000:01:00.0"
        try:
            n.nvmlDeviceGetMigMode(h)
        except n.NVMLError_NotSupported:
            pass
        deadline = time.monotonic() + 20
        while n.nvmlDeviceGetUtilizationRates(h).gpu < 99:
            assert time.monotonic() < deadline
        assert n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(1)).gpu == 0
        print(uuid, n.nvmlDeviceGetName(h), process.pid)
        """,
    )
    assert out.split() == [node.uuids[0], "Tesla", "T4", str(busy.pid)]


# A container: number 1 of a pid namespace, with a /proc of its own, and the machine's beside it.
_CONTAINER = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child")
_ENTER = 'mount --bind /proc "$NVSHARE_SIM_PROC" && mount -t proc proc /proc && exec "$@"'


def test_processes_of_containers_are_told_apart_by_the_machines_process_table(
    node: SimNode, start: Start, tmp_path: Path
) -> None:
    possible = subprocess.run([*_CONTAINER, "mount", "-t", "proc", "proc", "/proc"], capture_output=True, check=False)
    if possible.returncode != 0:
        pytest.skip("this machine allows no user and pid namespaces")
    source = """
        import os
        d = Driver(); d.alloc(64 << 20); print(os.getpid(), flush=True); sys.stdin.readline()
        """
    env = {"NVSHARE_SIM_PROC": str(tmp_path)}
    programs = [start(node, source, env, (*_CONTAINER, "sh", "-c", _ENTER, "sh")) for _ in range(2)]
    assert [program.line() for program in programs] == ["1", "1"]
    below = [children(program.pid) for program in programs]
    contexts = node.counters()[0]["contexts"]
    assert sorted([one["pid"]] for one in contexts if one["context"]) == sorted(below)
    programs[0].kill()
    assert programs[1].process.poll() is None
    programs[1].tell()
    programs[1].finish()
    assert node.counters()[0]["memory_used"] == 0


def test_a_program_without_a_node_is_told_what_to_do(node: SimNode) -> None:
    env = {**node.env(), "NVSHARE_SIM_NODE": "", "PYTHONPATH": str(Path(__file__).parent)}
    source = "from driver import *; raise SystemExit(Driver(init=False).code('cuInit', 0))"
    done = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 100
    assert "nvshare run --sim 2xT4" in done.stderr
