"""What clients did wrong, in the log: a line each, but never so many that one client can flood it."""

from __future__ import annotations

import logging
from collections import OrderedDict

from nvshare.daemon.identity import Peer

_LOG = logging.getLogger("nvshare")

WINDOW = 10.0  # seconds
LINES_PER_PEER = 5  # per window
LINES_PER_USER = 25  # per window, over all processes of one user
_REMEMBERED = 1024


class _Budget:
    """Counts per key within a window that starts at the key's first event."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._used: OrderedDict[int, tuple[float, int]] = OrderedDict()

    def spend(self, key: int, now: float) -> int:
        """How many lines are left after this one; negative when none was left for it."""
        start, used = self._used.get(key, (now, 0))
        if now - start >= WINDOW:
            start, used = now, 0
        self._used[key] = (start, used + 1)
        self._used.move_to_end(key)
        if len(self._used) > _REMEMBERED:
            self._used.popitem(last=False)
        return self._lines - used - 1


class OffenceLog:
    """Logs offences within the budgets of their process and their user."""

    def __init__(self) -> None:
        self.count = 0  # in all, logged or not
        self._peers = _Budget(LINES_PER_PEER)
        self._users = _Budget(LINES_PER_USER)

    def report(self, peer: Peer, text: str, now: float) -> None:
        self.count += 1
        left = self._peers.spend(peer.pid, now)
        if left < 0 or self._users.spend(peer.uid, now) < 0:
            return
        more = f" (further ones are not logged for {WINDOW:.0f} s)" if left == 0 else ""
        _LOG.warning("%s: %s%s", peer, text, more)
