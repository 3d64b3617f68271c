"""One connection to the scheduler's socket: frames in, frames out, and what the peer may cost us."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, cast

from nvshare.core import events
from nvshare.daemon import identity
from nvshare.daemon.translate import TO_EVENT, BadMessage, held_gpus, printable
from nvshare.wire import messages as wire
from nvshare.wire.codec import Decoder, Encoder, ProtocolError, Unknown, VersionMismatch

if TYPE_CHECKING:
    from nvshare.daemon.server import Daemon

_LOG = logging.getLogger("nvshare")

MAX_UNSENT = 1024 * 1024  # bytes a peer may leave unread before it is dropped
READS_WITHIN = 5.0  # seconds after which a peer that reads nothing is dropped
GOODBYE = 2.0  # seconds a refused peer has to read why


class ClientConnection(asyncio.Protocol):
    """Any peer: an application (registers), ``nvshare run`` (owns a group), or ``nvsharectl`` (asks)."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.peer = identity.Peer(0, -1)
        self.origin = identity.Origin(False, (-1, 0))
        self.transport: asyncio.Transport
        self.client = 0  # 0: not registered
        self.group = ""  # once it is registered
        self.gpus: list[str] = []
        self.owned_run: int | None = None  # the process whose run lives with this connection
        self.owned_lease: str | None = None  # that lives with this connection
        self.pods_listed: set[str] | None = None  # uids so far, while it tells of all pods there are
        self.awaits_lease = False  # it was asked for and not answered yet
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._pidfd: int | None = None
        self._closed = False
        self._waiting = False  # for a reply of ours
        self._choked = False  # it does not read what it was sent
        self._patience: asyncio.TimerHandle | None = None  # with that

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        connection: socket.socket = self.transport.get_extra_info("socket")
        self.peer = identity.peer_of(connection)
        self.origin = self.daemon.kernel.origin(connection, self.peer)
        refusal = self.daemon.admission.admit(self)
        if refusal:
            self.refuse(refusal, wire.RefusalCode.LIMIT)

    def data_received(self, data: bytes) -> None:
        self._handle_frames(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()

    def pause_writing(self) -> None:
        """It reads too little: it is not listened to until that is better, so it can ask for no more."""
        self._choked = True
        self.transport.pause_reading()
        self._patience = self.daemon.loop.call_later(READS_WITHIN, self._drop_deaf)

    def resume_writing(self) -> None:
        self._choked = False
        self._wait_no_longer()
        self._listen()

    # --- in

    def _handle_frames(self, data: bytes) -> None:
        if self._closed:
            return
        try:
            for message in self._decoder.feed(data):
                self._handle(message)
                if self._closed or self._waiting or self._choked:
                    return
        except VersionMismatch as error:
            self.refuse(
                f"this scheduler speaks protocol version {wire.VERSION}, the client version {error.version}: "
                "use the same nvshare release on both sides",
                wire.RefusalCode.VERSION,
            )
        except ProtocolError as error:
            self.refuse(str(error))
        except BadMessage as error:
            self.refuse(str(error))
        else:
            self.daemon.admission.owes_frame(self, self._decoder.pending > 0)

    def _handle(self, message: wire.Message | Unknown) -> None:
        to_event = TO_EVENT.get(type(message))  # type: ignore[arg-type]
        if to_event is not None:
            assert isinstance(message, wire.Message)
            if not self.client:
                raise BadMessage(f"{message.TYPE.name} before REGISTER")
            event = to_event(self.daemon.now(), self.client, self.gpus, message)
            self.daemon.dispatch(event)
        elif isinstance(message, wire.Control):
            self.daemon.answer_control(self, message.body)
        elif isinstance(message, wire.Share):
            self.send(self.daemon.share_of(self, message.uuid))
        elif isinstance(message, wire.Register):
            self._register(message)
        elif isinstance(message, wire.Attach):
            self._attach(message)
        elif isinstance(message, (wire.SetTq, wire.SchedOn, wire.SchedOff)):
            self.daemon.operators.legacy_setting(self, message)
        elif isinstance(message, Unknown):
            self.daemon.offences.report(self.peer, f"message of unknown type {message.type} skipped", self.daemon.now())
        else:
            raise BadMessage(f"{message.TYPE.name} is sent by the scheduler only")

    def _register(self, message: wire.Register) -> None:
        if self.client:
            raise BadMessage("REGISTER twice on one connection")
        if self.watch_process():
            library = printable(message.library) or "unknown"
            _LOG.debug("process %d has the library of release %s", self.peer.pid, library)
            self.gpus = [gpu.uuid for gpu in message.gpus]
            self.daemon.register(self, message)

    def _attach(self, message: wire.Attach) -> None:
        if not self.client:
            raise BadMessage("ATTACH before REGISTER")
        self.gpus += [gpu.uuid for gpu in message.gpus]
        self.daemon.dispatch(events.GpuAttached(self.daemon.now(), self.client, held_gpus(message.gpus)))

    def watch_process(self) -> bool:
        """Learn of the peer's death from the kernel, also when its child keeps the socket open. False: it is dead."""
        if self._pidfd is not None:
            return True
        connection: socket.socket = self.transport.get_extra_info("socket")
        try:
            self._pidfd = identity.peer_pidfd(connection, self.peer)
        except ProcessLookupError:
            self.hang_up()
            return False
        if self._pidfd is not None:
            self.daemon.loop.add_reader(self._pidfd, self.hang_up)
        return True

    @property
    def closed(self) -> bool:
        return self._closed

    # --- a reply that comes later

    @property
    def waits(self) -> bool:
        """For a reply of ours."""
        return self._waiting

    def wait_for_reply(self) -> None:
        """Read nothing more from this peer until ``continue_reading``: requests are answered one at a time."""
        self._waiting = True
        self.transport.pause_reading()

    def continue_reading(self) -> None:
        self._waiting = False
        self._listen()

    def _listen(self) -> None:
        if self._closed or self._waiting or self._choked:
            return
        self.transport.resume_reading()
        self._handle_frames(b"")

    # --- out

    def send(self, message: wire.Message) -> None:
        if self._closed:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent > MAX_UNSENT:
            self._drop_deaf()
            return
        self.transport.write(self._encoder.encode(message))

    def _drop_deaf(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self.daemon.offences.report(self.peer, f"does not read ({unsent} bytes unsent), dropped", self.daemon.now())
        self.hang_up()

    def _wait_no_longer(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def refuse(self, reason: str, code: wire.RefusalCode = wire.RefusalCode.MALFORMED, *, logged: bool = False) -> None:
        """Tell the peer why, and hang up."""
        if self._closed:
            return
        if not logged:
            self.daemon.offences.report(self.peer, f"refused: {reason}", self.daemon.now())
        self.send(wire.Refused(code, reason.encode()[:255].decode(errors="ignore")))
        if not self._closed:
            self._let_go()
            self.transport.close()
            self.daemon.loop.call_later(GOODBYE, self.transport.abort)

    def hang_up(self) -> None:
        """Close at once, with no word."""
        self._let_go()
        self.transport.abort()

    def _let_go(self) -> None:
        """Free what the peer held, once, whichever way it went."""
        if self._closed:
            return
        self._closed = True
        self._wait_no_longer()
        if self._pidfd is not None:
            self.daemon.loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self.daemon.forget(self)
