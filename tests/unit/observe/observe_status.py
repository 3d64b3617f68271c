"""Statuses as a scheduler answers them, made by the core."""

from __future__ import annotations

import json
from typing import Any

from nvshare.core import events as e
from nvshare.core.settings import Mode
from nvshare.daemon.pulse import Pulse
from tests.unit.core.core_scene import GIB, A, Scene

ABOUT = {"release": "1.2.3", "cards": [A], "started_at": 5.0, "pod_watch": False, "connections": 4, "offences": 2}


def scene() -> Scene:
    """A pod's process that runs, and a lone one that waits."""
    made = Scene(Mode.SERIAL, declared=8 * GIB)
    made.register(1, A, group="pod:u", pod="trainer", mem_limit=2 * GIB, core_limit="30..40")
    made.register(2, A)
    made.allocate(1, GIB)
    made.report(1, released=0, resident=GIB)
    made.send(e.UsageReported(1.0, 1, A, 0.5, 77, 1024, 5, 6))
    made.request(1)
    made.request(2)
    made.outsiders(GIB, None)
    return made


def status_of(made: Scene, **about: Any) -> dict[str, Any]:
    said = {**ABOUT, "loop": Pulse().to_dict(), **about}
    answer: dict[str, Any] = json.loads(json.dumps({**made.scheduler.snapshot(made.now).to_dict(), "scheduler": said}))
    return answer
