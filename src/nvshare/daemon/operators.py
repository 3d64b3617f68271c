"""What operators do: settings, quotas of groups, taking both back; and what of it outlives a restart of the scheduler.

A request is carried out at once and answered when it has been written down, so that who has the answer may kill the
scheduler. Nobody but the operator waits for that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvshare import procfs
from nvshare.core import events
from nvshare.core.policy.membership import run_group
from nvshare.daemon import control, identity, kept
from nvshare.daemon.keptfile import KeptFile
from nvshare.wire import messages as wire

if TYPE_CHECKING:
    from nvshare.daemon.connection import ClientConnection
    from nvshare.daemon.server import Daemon

_LOG = logging.getLogger("nvshare")

MAX_KEPT = 1024  # groups; further ones have their quotas until the scheduler ends
AWAITED = 600.0  # seconds for which a group may be away before what was set for it is forgotten
WRITTEN_WITHIN = 1.0  # seconds after which an operator is answered although the disk is not done
PER_STEP = 4  # groups whose quotas are taken back, some 0.1 ms each
LOOKS = 16  # at processes of groups that are away, in one look
_NAMELESS = "its process cannot be told from later ones (it is in a pid namespace that the scheduler does not see)"


@dataclass
class _Entry:
    kept: kept.KeptGroup
    away_since: float | None = None  # None: it was there at the last look
    untold: bool = False  # it is from before the restart, and the log has not said so yet

    def __post_init__(self) -> None:
        self.line = kept.line(self.kept)  # made once: what is kept is compared every second


class OperatorDesk:
    def __init__(self, daemon: Daemon, file: Path | None) -> None:
        self._daemon = daemon
        self._core = daemon.core
        self._started_with = self._core.settings.operable()
        self._boot = procfs.boot()
        self._groups: dict[str, _Entry] = {}
        self._awaited: dict[int, kept.Owner] = {}  # processes whose runs have not come back since the restart
        self._nameless: set[str] = set()  # groups with quotas that cannot be kept
        self._lines: list[str] = []
        what = "what was set with nvsharectl"
        self._file = KeptFile(daemon.loop, file, "kept", what, lambda: self._lines, period=0.0)
        self._settings = self._core.settings.operable()
        self._restore(self._file.load(kept.read) or [])

    def close(self, *, forget: bool = False) -> None:
        """``forget``: nobody was left, and the next one is no restart of this one."""
        if forget:
            self._file.remove()
        else:
            self._file.close()

    # --- requests

    def answer(self, connection: ClientConnection, request: control.Request) -> None:
        """``set``, ``limit`` and ``reset``. ``ControlError`` says what is allowed."""
        if request["op"] == "reset":
            self._reset(connection, request)
            return
        answer = (self._set if request["op"] == "set" else self._limit)(connection, request)
        connection.wait_for_reply()
        self._reply(connection, answer)

    def _reply(self, connection: ClientConnection, answer: dict[str, Any]) -> None:
        """When it is written down."""
        unkept = answer.pop("unkept", None)

        def reply(problem: str | None) -> None:
            connection.send(wire.ControlReply(control.reply(**answer, unkept=unkept or problem)))
            connection.continue_reading()

        self._save(_once(reply, self._daemon))

    def require(self, connection: ClientConnection) -> None:
        """``ControlError`` unless this is an operator."""
        if not connection.origin.operator:
            raise control.ControlError(
                f"only root or the scheduler's own user (uid {os.geteuid()}), outside of containers, may change "
                "settings; status is open to everybody"
            )

    def legacy_setting(self, connection: ClientConnection, message: wire.Message) -> None:
        """SET_TQ, SCHED_ON and SCHED_OFF from a control program: a setting without a reply."""
        request: control.Request = {"op": "set"}
        if isinstance(message, wire.SetTq):
            request["quantum"] = message.seconds
        else:
            request["anti_thrash"] = isinstance(message, wire.SchedOn)
        try:
            self._set(connection, request)
        except control.ControlError as error:
            connection.refuse(f"{message.TYPE.name}: {error}")
        else:
            self._save()

    def _set(self, connection: ClientConnection, request: control.Request) -> dict[str, Any]:
        event = control.settings_change(self._daemon.now(), request)
        self.require(connection)
        reason = self._core.why_unchanged(event)
        if reason is not None:
            raise control.ControlError(reason)
        self._daemon.dispatch(event)
        return {"settings": self._shown()["settings"]}

    def _limit(self, connection: ClientConnection, request: control.Request) -> dict[str, Any]:
        target = control.target(request)
        self.require(connection)
        group = self._named(target)
        event = control.limits_change(self._daemon.now(), group, request)
        reason = self._core.why_unchanged(event)
        if reason is not None:
            raise control.ControlError(reason)
        self._daemon.dispatch(event)
        return {"group": self._shown([group])["groups"][0], "unkept": self._note(event)}

    def _named(self, target: control.Target) -> str:
        """Whose quotas are meant; ``ControlError`` when nobody there is, or more than one."""
        groups = self._core.named(target.kind, target.value)
        if len(groups) > 1:
            numbers = ", ".join(sorted(group.partition(":")[2] for group in groups)[:8])
            raise control.ControlError(f"{len(groups)} are called {target.value}: name one by its number ({numbers})")
        if not groups:
            raise control.ControlError(f"there is no {target}; nvsharectl status shows who is there")
        return groups[0]

    def _reset(self, connection: ClientConnection, request: control.Request) -> None:
        asked = control.reset(request)
        self.require(connection)
        groups: list[str] = []
        if isinstance(asked, control.Target):
            groups = [self._named(asked)]
        else:
            self._daemon.dispatch(events.SettingsReset(self._daemon.now()))
            if asked is control.Scope.EVERYTHING:
                groups = [*self._groups, *self._nameless]
        connection.wait_for_reply()
        self._take_back_some(connection, groups, 0)

    def _take_back_some(self, connection: ClientConnection, groups: list[str], done: int) -> None:
        """A few at a time, with everything else in between."""
        for group in groups[done : done + PER_STEP]:
            self._take_back(group)
        if done + PER_STEP < len(groups):
            self._daemon.loop.call_later(0, self._take_back_some, connection, groups, done + PER_STEP)
        else:
            self._reply(connection, self._shown(groups))

    def _take_back(self, group: str) -> None:
        self._groups.pop(group, None)
        self._nameless.discard(group)
        if self._core.has_group(group):
            self._daemon.dispatch(kept.Quotas().change(self._daemon.now(), group))

    def _shown(self, groups: Sequence[str] = ()) -> dict[str, Any]:
        """The settings, and these groups; of one that is not there only its name."""
        snapshot = self._core.snapshot(self._daemon.now()).to_dict()
        known = {entry["id"]: entry for entry in snapshot["groups"]}
        return {"settings": snapshot["settings"], "groups": [known.get(group, {"id": group}) for group in groups]}

    # --- what is kept

    def _note(self, change: events.LimitsChanged) -> str | None:
        """Remember it; why it will be forgotten with this scheduler, or None."""
        entry = self._groups.get(change.group)
        quotas = (entry.kept.quotas if entry else kept.Quotas()).after(change)
        self._nameless.discard(change.group)
        if quotas.empty:
            self._groups.pop(change.group, None)
            return None
        is_pod = change.group.startswith("pod:")
        owner = None if is_pod else self._owner(self._daemon.holder_of(change.group))
        problem = None if is_pod or owner is not None else _NAMELESS
        if entry is None and len(self._groups) >= MAX_KEPT:
            problem = f"the quotas of {MAX_KEPT} runs, pods and processes are kept, and no more"
        if problem is not None:
            self._groups.pop(change.group, None)
            self._nameless.add(change.group)
            return problem
        self._groups[change.group] = _Entry(kept.KeptGroup(change.group, owner, quotas))
        return None

    def _owner(self, connection: ClientConnection | None) -> kept.Owner | None:
        """The process at the other end; None when it has ended or cannot be seen."""
        if connection is None or not connection.peer.pid:
            return None
        peer = connection.peer
        started = identity.while_alive(connection.transport.get_extra_info("socket"), peer, procfs.start_time)
        return kept.Owner(peer.pid, started, self._boot) if started else None

    def _save(self, then: Callable[[str | None], None] | None = None) -> None:
        """Write down what is in force now."""
        self._settings = self._core.settings.operable()
        settings = [
            kept.KeptSetting(name, value, self._started_with[name])
            for name, value in self._settings.items()
            if value != self._started_with[name]
        ]
        lines = [*map(kept.line, settings), *(entry.line for entry in self._groups.values())]
        if lines == self._lines and then is None:
            return
        self._lines = lines
        self._file.save(then)

    def _restore(self, entries: list[kept.Entry]) -> None:
        for entry in entries:
            if isinstance(entry, kept.KeptSetting):
                self._restore_setting(entry)
            elif entry.owner is not None and not self._lives(entry.owner):
                _LOG.info("Forgot what was set for %s (%s): its process is gone", entry.group, entry.quotas)
            elif len(self._groups) < MAX_KEPT:
                self._groups[entry.group] = _Entry(entry, away_since=self._daemon.now(), untold=True)
                if entry.owner is not None and entry.group == run_group(entry.owner.pid):
                    self._awaited[entry.owner.pid] = entry.owner
                    process = self._daemon.kernel.process(entry.owner.pid)
                    self._daemon.dispatch(events.RunAwaited(self._daemon.now(), process))
        self._lines = [kept.line(entry) for entry in entries]
        self._save()

    def _restore_setting(self, entry: kept.KeptSetting) -> None:
        started_with = self._started_with[entry.name]
        said = kept.words(entry.name, entry.value)
        if entry.instead_of != started_with:
            now = kept.words(entry.name, started_with)
            _LOG.info("Forgot %s, which was set with nvsharectl: the scheduler is started with %s now", said, now)
            return
        event = entry.change(self._daemon.now())
        reason = self._core.why_unchanged(event)
        if reason is None:
            self._daemon.dispatch(event)
            _LOG.info("Kept from before the restart: %s (set with nvsharectl; nvsharectl reset takes it back)", said)
        else:
            _LOG.warning("Forgot %s, which was set with nvsharectl: %s", said, reason)

    def _lives(self, owner: kept.Owner) -> bool:
        return owner.boot == self._boot and procfs.start_time(owner.pid) == owner.started

    def forget_dead_runs(self) -> None:
        """Before a process is asked about: another process with the number of one that had a run inherits nothing."""
        for pid, owner in list(self._awaited.items()):
            if not self._lives(owner):
                del self._awaited[pid]
                self._daemon.dispatch(events.RunClosed(self._daemon.now(), pid))

    def appeared(self, group: str, holder: int | None) -> None:
        """A group is there (again). ``holder``: the process that says it is its own; None: the kernel says whose it
        is."""
        if holder is not None and group == run_group(holder):
            self._awaited.pop(holder, None)
        entry = self._groups.get(group)
        owner = None if entry is None else entry.kept.owner
        if entry is None or (owner is not None and holder not in (None, owner.pid)):
            return  # nothing was set, or somebody else claims the name
        if owner is not None and not self._lives(owner):
            del self._groups[group]  # somebody else has the number
            self._save()
            return
        entry.away_since = None
        self._daemon.dispatch(entry.kept.quotas.change(self._daemon.now(), group))
        if entry.untold:
            entry.untold = False
            said = "Kept from before the restart for %s: %s (set with nvsharectl; nvsharectl reset takes it back)"
            _LOG.info(said, group, entry.kept.quotas)

    def look(self) -> None:
        """Now and then: forget what nobody needs any more, and see what the core itself changed."""
        now = self._daemon.now()
        away: list[_Entry] = []
        for group, entry in self._groups.items():
            if self._core.has_group(group):
                entry.away_since = None
            else:
                entry.away_since = now if entry.away_since is None else entry.away_since
                away.append(entry)
        for entry in away[:LOOKS]:
            group = entry.kept.group
            del self._groups[group]
            if self._is_awaited(entry, now):
                self._groups[group] = entry  # at the end: others are looked at before it is again
        self._nameless = {group for group in self._nameless if self._core.has_group(group)}
        self._save()

    def _is_awaited(self, entry: _Entry, now: float) -> bool:
        """A run or a process outside of runs may come back as long as its process lives; of a lease that alone does not
        tell, for its holder may have given it back, and nothing tells of a pod."""
        kept_group, since = entry.kept, entry.away_since
        if kept_group.owner is not None and not self._lives(kept_group.owner):
            return False
        lasting = kept_group.group.startswith(("run:", "process:"))
        return lasting or since is None or now - since <= AWAITED


def _once(reply: Callable[[str | None], None], daemon: Daemon) -> Callable[[str | None], None]:
    """Called when it is written, or when that takes too long: whichever is first."""
    answered = False

    def answer(problem: str | None) -> None:
        nonlocal answered
        if not answered:
            answered = True
            patience.cancel()
            reply(problem)

    patience = daemon.loop.call_later(WRITTEN_WITHIN, answer, "the disk takes its time")
    return answer
