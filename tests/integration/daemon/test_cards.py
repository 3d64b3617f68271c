"""The scheduler under a simulated driver: it finds the cards by NVML, and measures what contexts cost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nvshare.client.connection import Connection
from nvshare.client.spawn import ensure_scheduler
from nvshare.gpu import sim
from tests.support.processes import environment

MIB = 1 << 20

APPLICATION = """
import ctypes, pathlib, sys
from tests.support.wire_client import WireClient
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
client = WireClient(pathlib.Path(sys.argv[1]))
client.register(sys.argv[2])
print("registered", flush=True)
sys.stdin.read()
"""


@pytest.mark.simulated
def test_context_of_a_client_is_measured_not_guessed():
    # GIVEN a simulated node with its scheduler, and a process that has a context and nothing else
    node = sim.up("2xT4", name=f"cards-{os.getpid()}")
    try:
        variables = environment(**node.env())
        ensure_scheduler(node.socket, variables)
        application = subprocess.Popen(
            [sys.executable, "-c", APPLICATION, str(node.socket), node.uuids[0]],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert application.stdin is not None
        assert application.stdout is not None
        application.stdout.readline()
        # WHEN the scheduler has looked at the cards
        with Connection(node.socket) as connection:
            while not (gpus := {gpu["uuid"]: gpu for gpu in connection.request("status")["status"]["gpus"]})[
                node.uuids[0]
            ]["contexts"]:
                pass
        # THEN it knows what the context takes, and what is left for everybody
        assert gpus[node.uuids[0]]["contexts"] == 1009 * MIB
        assert gpus[node.uuids[0]]["capacity"] == (14913 - 1009) * MIB
        assert gpus[node.uuids[1]]["contexts"] == 0
        application.stdin.close()
        application.stdout.close()
        application.wait(10)
    finally:
        sim.down(node.name)
