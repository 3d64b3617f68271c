"""Random sequences of events through the real core and the library's real state machine; see joint_world.py."""

from __future__ import annotations

import pytest

from tests.unit.model.joint_world import JointWorld


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_core_and_client_machine_keep_every_invariant_together(first: int) -> None:
    for seed in range(first, first + 20):
        JointWorld(seed).run()
