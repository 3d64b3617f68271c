"""A daemon in memory whose peers are given their numbers and their pods by hand."""

from __future__ import annotations

import json
import os

from nvshare.daemon import identity
from nvshare.daemon.connection import ClientConnection
from nvshare.daemon.identity import Peer
from nvshare.wire import messages as wire
from nvshare.wire.codec import Encoder

GPUS = tuple(f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(2))
GIB = 1 << 30
UID = "3f2a9c1e-7b54-4d0a-9e61-0c5d1f7a8b22"
OTHER = "00000000-7b54-4d0a-9e61-0c5d1f7a8b22"


class Node:
    """A daemon that is told which process is in which pod."""

    def __init__(self, in_memory, monkeypatch, **options) -> None:
        self.pods: dict[int, str] = {}
        self._patch = monkeypatch
        self._node = in_memory(pod_of=self.pods.get, **options)
        self.loop = self._node.loop
        monkeypatch.setattr(ClientConnection, "watch_process", lambda self: True)

    def connect(self, pid: int = os.getpid(), uid: int = os.getuid()):
        self._patch.setattr(identity, "peer_of", lambda _: Peer(pid, uid))
        return _Speaker(*self._node.connect())

    def task(self, pid: int, pod: str | None, *first, **fields):
        if pod is not None:
            self.pods[pid] = pod
        peer = self.connect(pid)
        peer.send(wire.Register((wire.GpuEntry(GPUS[0]),), **fields), *first)
        return peer

    def close(self):
        self._node.daemon.close()

    def groups(self):
        self._node.core.validate()
        return {group.id: group for group in self._node.core.snapshot(0).groups}

    def clients(self):
        return self._node.core.snapshot(0).clients


class _Speaker:
    def __init__(self, connection, transport) -> None:
        self.connection, self.transport, self._encoder = connection, transport, Encoder()

    def send(self, *messages) -> None:
        self.connection.data_received(b"".join(map(self._encoder.encode, messages)))

    def tell(self, **request) -> None:
        self.send(wire.Control(json.dumps(request).encode()))

    def said(self, kind=wire.ControlReply):
        return [message for message in self.transport.messages() if isinstance(message, kind)]

    def answer(self):
        return json.loads(self.said()[-1].body)


def pod(uid=UID, name="trainer", namespace="default", **fields):
    return {"uid": uid, "namespace": namespace, "name": name, **fields}


def told(node, watcher, **request):
    watcher.tell(op="pods", **request)
    node.loop.advance(0.01)
    return watcher.answer()
