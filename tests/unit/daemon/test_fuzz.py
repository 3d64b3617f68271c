"""Random and mutated frames against the daemon's own protocol class and the real core: 50,000, or a million with
NVSHARE_SOAK.

The frames come from seeds. Most are well framed and numbered, so that they get past the codec; their fields are random
or almost right. After all of it the daemon serves a good client, and nothing of the strangers is left.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from nvshare.daemon import identity
from nvshare.daemon.connection import ClientConnection
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from tests.unit.daemon.conftest import InMemory, KeepingTransport

SOAK = bool(os.environ.get("NVSHARE_SOAK"))
SEEDS = range(20240917, 20240922 if SOAK else 20240918)
FRAMES = 200_000 if SOAK else 50_000
VALIDATE_EVERY = 5000
PER_CONNECTION = 200
MAX_CONNECTIONS_AT_ONCE = 8
GPUS = tuple(f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(2))
INTERESTING = (0, 1, 2, 7, 15, 16, 255, 4096, 1 << 20, 1 << 30, 1 << 31, (1 << 32) - 1, 1 << 56, 1 << 63, (1 << 64) - 1)
REQUESTS: tuple[object, ...] = (
    {"op": "set", "mode": "serial"},
    {"op": "set", "mode": "auto"},
    {"op": "set", "anti_thrash": False},
    {"op": "set", "anti_thrash": True},
    {"op": "set", "quantum": 5},
    {"op": "limit", "target": {"pid": os.getpid()}, "mem": 1 << 30},
    {"op": "limit", "target": {"pid": os.getpid()}, "mem": None, "cores": 50},
    {"op": "run", "label": "x"},
    {"op": "lease", "mem": 1 << 30, "cores": 25},
    {"op": "lease", "cores": 100, "gpus": 2},
    {"op": "lease", "gpus": 1, "again": {"id": "0123456789abcdef", "gpus": [GPUS[0]]}},
    {"op": "nonsense"},
    [],
)
CONTROL_BODIES = tuple(json.dumps(request).encode() for request in REQUESTS)


class Mischief:
    """One stranger: frames that are right, almost right, or nothing at all."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._sequence = 0

    def frame(self) -> bytes:
        chance = self._chance
        luck = chance.random()
        if luck < 0.01:
            return chance.randbytes(chance.randrange(1, 64))
        kind, payload = self._message()
        if luck < 0.04:
            payload = self._mutated(payload)
        if luck > 0.995:
            payload = payload[: chance.randrange(len(payload) + 1)]
        self._sequence += 1
        sequence = self._sequence if luck > 0.015 else chance.getrandbits(32)
        version = wire.VERSION if luck > 0.012 else chance.getrandbits(16)
        return wire.HEADER.pack(wire.MAGIC, version, kind, len(payload), sequence) + payload

    def _message(self) -> tuple[int, bytes]:
        chance = self._chance
        if self._sequence == 0 and chance.random() < 0.9:
            return wire.MessageType.REGISTER, self._register()
        kind = chance.choices(
            (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 19, 20, 9999),
            (1, 1, 1, 40, 1, 30, 1, 20, 1, 1, 40, 10, 2, 5),
        )[0]  # fmt: skip
        if kind == wire.MessageType.REGISTER:
            return kind, self._register()
        if kind == wire.MessageType.CONTROL:
            return kind, chance.choice(CONTROL_BODIES)
        if kind not in wire.BY_TYPE:
            return kind, b"?" * chance.randrange(32)
        layout = wire.BY_TYPE[kind]
        values = [self._value(name, code) for name, code in layout.LAYOUT if name in layout.NAMES]
        payload = layout.STRUCT.pack(*values)
        return kind, payload + self._entry() if kind == wire.MessageType.ATTACH else payload

    def _value(self, name: str, code: str) -> int | bytes:
        chance = self._chance
        if code.endswith("s"):
            return chance.randbytes(chance.randrange(8))
        limit = (1 << (32 if code == "I" else 64)) - 1
        if name == "gpu":
            return 0 if chance.random() < 0.98 else chance.getrandbits(32)
        if name in ("reason", "gpu_count"):
            return chance.randrange(4)
        if chance.random() < 0.9:
            return chance.randrange(1 << 12)
        return min(limit, chance.choice(INTERESTING))

    def _entry(self) -> bytes:
        return wire.GpuEntry(self._chance.choice(GPUS), 0, 0, self._chance.choice((0, 0, 0, 5))).pack()

    def _register(self) -> bytes:
        chance = self._chance
        gpus = tuple(wire.GpuEntry(gpu) for gpu in chance.sample(GPUS, chance.randrange(1, 3)))
        return wire.Register(
            gpus,
            mem_limit=chance.choice(INTERESTING),
            core_limit=chance.randrange(120),
            previous_id=chance.randrange(3),
            name="fuzz",
        ).pack()

    def _mutated(self, payload: bytes) -> bytes:
        if not payload:
            return payload
        changed = bytearray(payload)
        for _ in range(self._chance.randrange(1, 4)):
            changed[self._chance.randrange(len(changed))] = self._chance.getrandbits(8)
        return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_and_mutated_frames_harm_nobody(
    in_memory: Callable[..., InMemory], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # GIVEN a daemon (asking the kernel a million times who we are would only take long), and strangers
    monkeypatch.setattr(identity, "pod_of", lambda pid: None)
    monkeypatch.setattr(identity, "ancestry", lambda pid: (pid,))
    monkeypatch.setattr(identity, "is_operator", lambda peer, pod, own_pod: True)
    logging.getLogger("nvshare").setLevel(logging.CRITICAL)
    node = in_memory()
    chance = random.Random(seed)
    peers: list[tuple[Mischief, ClientConnection, KeepingTransport]] = []
    # WHEN they send frame after frame
    for number in range(FRAMES):
        if len(peers) < MAX_CONNECTIONS_AT_ONCE and (not peers or chance.random() < 0.05):
            peers.append((Mischief(chance), *node.connect()))
        place = chance.randrange(len(peers))
        mischief, connection, transport = peers[place]
        connection.data_received(mischief.frame())
        transport.sent.clear()
        if transport.closed or mischief._sequence > PER_CONNECTION:
            connection.connection_lost(None)
            peers.pop(place)
        if number % 50 == 0:
            node.loop.advance(chance.random())
        if number % VALIDATE_EVERY == 0:
            node.core.validate()
    # THEN no invariant is broken, and when they are gone nothing of them is left
    for _, connection, _ in peers:
        connection.connection_lost(None)
    node.core.validate()
    left = node.core.snapshot(node.loop.time()).to_dict()
    assert (left["clients"], left["groups"]) == ([], [])
    assert left["counters"]["grants"] > FRAMES / 100, "the frames hardly got past the codec"
    assert not node.loop.readers
    # AND a good client is served
    connection, transport = node.connect()
    control = json.dumps({"op": "set", "mode": "auto", "anti_thrash": True}).encode()
    frames = (wire.Control(control), wire.Register((wire.GpuEntry(GPUS[0]),)), wire.ReqLock(0))
    for sequence, message in enumerate(frames, start=1):
        payload = message.pack()
        connection.data_received(
            wire.HEADER.pack(wire.MAGIC, wire.VERSION, message.TYPE, len(payload), sequence) + payload
        )
    assert wire.LockOk in [type(message) for message in transport.messages()]
