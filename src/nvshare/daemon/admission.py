"""How many connections there are at once, whose they are, and how long a peer may take over a frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from nvshare.daemon import identity

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection

MAX_CONNECTIONS = 4096
SHARE_OF_ONE_USER = 0.75
SHARE_OF_ONE_CONTAINER = 0.25  # whose root is everybody's root
KEPT_FOR_OPERATORS = 64
FRAME_TIMEOUT = 10.0  # seconds a peer has to complete a frame it began, the first one included


class Admission:
    def __init__(self, max_connections: int, now: Callable[[], float]) -> None:
        self.connections: set[ClientConnection] = set()
        self._max_connections = max_connections
        self._now = now
        self._namespace = identity.own_namespace()
        self._crowds: Counter[tuple[int, int]] = Counter()
        self._owing: dict[ClientConnection, float] = {}  # connections with an incomplete frame, and since when
        self._idle_since: float | None = now()

    def admit(self, connection: ClientConnection) -> str | None:
        """Take a new connection in, or say why not. Operators find room where others have taken all."""
        crowd, operator = connection.origin.crowd, connection.origin.operator
        self.connections.add(connection)
        self._crowds[crowd] += 1
        self._idle_since = None
        if len(self.connections) > self._max_connections + (KEPT_FOR_OPERATORS if operator else 0):
            return f"{self._max_connections} connections are open, which is all this scheduler takes"
        inside = crowd[1] not in (0, self._namespace)
        share = int(self._max_connections * (SHARE_OF_ONE_CONTAINER if inside else SHARE_OF_ONE_USER))
        if self._crowds[crowd] > share and not operator:
            where = " in one container" if inside else ""
            return f"user {crowd[0]} has {share} connections open, which is all one user gets{where}"
        self._owing[connection] = self._now()
        return None

    def leave(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        self._owing.pop(connection, None)
        crowd = connection.origin.crowd
        self._crowds[crowd] -= 1
        if not self._crowds[crowd]:
            del self._crowds[crowd]
        if not self.connections:
            self._idle_since = self._now()

    def owes_frame(self, connection: ClientConnection, owes: bool) -> None:
        """Note whether a peer is in the middle of a frame; it must not stay there."""
        if owes:
            self._owing.setdefault(connection, self._now())
        elif self._owing:
            self._owing.pop(connection, None)

    def refuse_overdue(self) -> None:
        """Drop peers that do not complete a frame."""
        began_before = self._now() - FRAME_TIMEOUT
        for connection in [one for one, since in self._owing.items() if since < began_before]:
            connection.refuse(f"no complete message within {FRAME_TIMEOUT:.0f} s")

    def idle_for(self) -> float:
        """Seconds without any connection."""
        return 0.0 if self._idle_since is None else self._now() - self._idle_since
