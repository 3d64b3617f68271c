"""Which clients take slices on a card, and with which share; sends them their terms.

The rules are in ``policy/regime.py`` and ``policy/fair.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.core.commands import Level, Log, SetTerms
from nvshare.core.compute.account import Account
from nvshare.core.compute.policy import lag
from nvshare.core.compute.policy.constants import (
    ACTIVE_FOR,
    CYCLE,
    IN_FLIGHT,
    IN_FLIGHT_BUSY,
    IN_FLIGHT_LOOSE,
    IN_FLIGHT_URGENT,
    LAUNCH_BOUND_BELOW,
    LONG,
    LONGEST,
    LOOK_AGAIN_MAX,
    SLICE,
)
from nvshare.core.compute.policy.fair import Demand, fair
from nvshare.core.compute.policy.regime import Evidence, Kind, contended
from nvshare.core.compute.policy.rhythm import Rhythm
from nvshare.core.compute.state import AttachmentCompute, CardCompute, Slice
from nvshare.core.memory.policy.quantum import quantum
from nvshare.core.settings import Priority
from nvshare.core.state import Attachment, GpuState, Node, Standing

WHOLE = 100  # percent
LEAST_SHARE = 0.001  # part of the card: nobody's virtual time runs away


def runs_free(attachment: Attachment) -> bool:
    """The client is better left to run beside others. Beside a quota brief bursts are not: nobody could keep it."""
    kind = attachment.compute.kind
    return kind.free and not (kind is Kind.BRIEF and attachment.gpu.compute.promised)


def overlaps(attachment: Attachment) -> bool:
    """The client's slices are not exclusive: it runs free, or its work waits for other cards."""
    return runs_free(attachment) or attachment.client.group.spans_cards


def open_slices(card: CardCompute) -> Iterator[Slice]:
    """Slices that were given and not handed on."""
    if card.exclusive is not None:
        yield card.exclusive
    yield from card.shared.values()


class Terms:
    def __init__(self, node: Node) -> None:
        self.node = node

    def account(self, attachment: Attachment) -> Account:
        """The account of the client's group on this card, opened where there is none."""
        known = attachment.compute.account
        return self._find_account(attachment) if known is None else known

    def _find_account(self, attachment: Attachment) -> Account:
        card, group, now = attachment.gpu.compute, attachment.client.group, self.node.now
        found = card.accounts.get(group.id)
        if found is None:
            card.opened += 1
            time = self.virtual_time(card)
            found = card.accounts[group.id] = Account(card.opened, virtual=0.0 if time is None else time)
            found.bucket.filled_at = now
            found.bucket.restart(group.core_percent / WHOLE, now)
            found.set_depth(attachment.compute.rhythm.burst, 0.0, now)
            found.bucket.level = found.bucket.depth
        attachment.compute.account = found
        return found

    @staticmethod
    def virtual_time(card: CardCompute) -> float | None:
        """V of the card: of the groups that are live, else of all."""
        accounts = {id(found): found for found in (each.compute.account for each in card.live) if found is not None}
        return lag.virtual_time(accounts.values() or card.accounts.values())

    @staticmethod
    def _bound_lag(card: CardCompute, account: Account, most: float) -> None:
        """Keep what a group is owed by the others that are live, and owes them, within a bound. Its own virtual time
        would pull V along, and most of its lag would stay."""
        others = {id(other): other for other in (each.compute.account for each in card.live) if other is not None}
        others.pop(id(account), None)
        time = lag.virtual_time(others.values())
        if time is not None:
            account.virtual = lag.bounded(account, time, most)

    def touch(self, attachment: Attachment) -> bool:
        """Note that the client uses the card; True: it had not for a while."""
        state, now = attachment.compute, self.node.now
        awoke = now >= state.active_at + ACTIVE_FOR
        state.active_at = now
        return awoke

    def ignores(self, state: AttachmentCompute) -> bool:
        """The client has had time to follow its terms."""
        return self.node.now - state.terms_at > ACTIVE_FOR

    # --- what kind of client it is

    def judge(self, slice: Slice, busy: float, used: float) -> bool:
        """Learn the kind of a client from a slice; True: it changed.

        Others on the card can make a client look busier than it is, never the other way round.
        """
        state = slice.attachment.compute
        before = state.kind
        if state.rhythm.brief and not before.free:
            self._found(slice.attachment, Kind.BRIEF)
            return True
        if used <= 0.0 or busy <= 0.0 or not self._is_undisturbed(slice):
            return False
        alone = slice.alone and not slice.attachment.gpu.compute.free_runners
        if not alone and busy >= LAUNCH_BOUND_BELOW * used:
            return False
        state.evidence.add(used, busy)
        verdict = state.evidence.verdict(before)
        if verdict is None or (before is Kind.BRIEF and (state.rhythm.brief or not slice.exclusive)):
            return False
        self._found(slice.attachment, verdict)
        return verdict is not before

    def _found(self, attachment: Attachment, kind: Kind) -> None:
        state = attachment.compute
        if not kind.free:
            state.trust = 0.0
            if state.kind.free:
                self._compete_again(attachment)
        elif not state.kind.free:
            self._trust_longer(state)
        state.kind, state.judged_at = kind, self.node.now

    def _compete_again(self, attachment: Attachment) -> None:
        """The client no longer runs beside others. What it used then it took from nobody: it owes little of that."""
        self._bound_lag(attachment.gpu.compute, self.account(attachment), LONGEST)

    @staticmethod
    def _trust_longer(state: AttachmentCompute) -> None:
        state.trust = min(LOOK_AGAIN_MAX, max(2 * ACTIVE_FOR, 2 * state.trust))

    @staticmethod
    def _is_undisturbed(slice: Slice) -> bool:
        """No work ran beside the slice that a client had submitted before it began to take slices."""
        return all(
            not other.compute.in_slices or other.compute.terms_at + CYCLE <= slice.given_at
            for other in slice.attachment.gpu.running.values()
        )

    # --- who takes slices

    def concerns(self, attachment: Attachment) -> bool:
        """Whether a grant to this client, or its end, may change the terms on its card."""
        state = attachment.compute
        return state.in_slices or state.ignorant or attachment.gpu.compute.contended or self._active(attachment)

    def review(self, gpu: GpuState) -> None:
        """Decide the terms of a card's clients anew, and send those that changed."""
        card, settings, now = gpu.compute, self.node.settings, self.node.now
        card.dirty = False
        running = list(gpu.running.values())
        self._look_again(running)
        for attachment in running:
            state = attachment.compute
            state.ignorant = state.ignorant and now < state.terms_at + LOOK_AGAIN_MAX
        card.promised = any(self._active(attachment) and self._promised(attachment) for attachment in running)
        busy = [attachment for attachment in running if self._contends(attachment)]
        was, card.contended = card.contended, contended(settings.mode, len(busy), any(map(self._promised, busy)))
        active = [attachment for attachment in running if self._active(attachment)]
        for attachment in gpu.attachments.values():
            attachment.compute.urgent = attachment.client.group.rank is Priority.HIGH
        for attachment in gpu.attachments.values():
            self._set_terms(attachment, self._takes_slices(attachment), self._in_flight(attachment, active))
        card.live = [attachment for attachment in active if attachment.compute.in_slices]
        card.free_runners = len(active) - len(card.live)
        self._set_quotas(gpu)
        self.set_shares(gpu)
        self._log_scaling(gpu)
        card.look_at = min((at for at in self._expiries(gpu) if at > now), default=None)
        if card.contended is not was:
            how = "in compute turns" if card.contended else "freely"
            self._log(
                Level.INFO,
                f"Concurrent execution: {len(running)} tasks running, {how}: {len(busy)} keep GPU {gpu.uuid} busy",
            )

    def _expiries(self, gpu: GpuState) -> Iterator[float]:
        """When something that is known of the card's running clients expires. Whether one is active concerns all that
        are attached: their terms say how much may be in flight."""
        for attachment in gpu.running.values():
            state = attachment.compute
            if state.ignorant:
                yield state.terms_at + LOOK_AGAIN_MAX
            if len(gpu.attachments) > 1 and self._active(attachment):
                yield state.active_at + ACTIVE_FOR
            if len(gpu.running) > 1 and self._doubtful(attachment):
                yield state.judged_at + state.trust

    def _look_again(self, running: list[Attachment]) -> None:
        """A client that runs freely may have changed, so after a while it is measured again, in slices. All of them are
        measured together, without those that are launch-bound and visibly still use little."""
        now = self.node.now
        doubtful = [attachment for attachment in running if self._doubtful(attachment)]
        due = [attachment for attachment in doubtful if attachment.compute.judged_at + attachment.compute.trust <= now]
        if not due or sum(map(self._active, running)) < 2:
            return
        for attachment in filter(self._uses_little, due):
            attachment.compute.judged_at = now
            self._trust_longer(attachment.compute)
        if all(map(self._uses_little, due)):
            return
        for attachment in doubtful:
            if not self._uses_little(attachment):
                state = attachment.compute
                state.kind, state.evidence, state.rhythm = Kind.UNKNOWN, Evidence(), Rhythm()
                self._compete_again(attachment)

    def _uses_little(self, attachment: Attachment) -> bool:
        """The client is launch-bound, runs freely, and uses little of the card's time. Others on the card can only make
        it seem more."""
        state = attachment.compute
        free = state.kind is Kind.LAUNCH_BOUND and not state.in_slices and self.node.now - state.terms_at > 1.0
        return free and state.delivered.over(1.0, self.node.now) < LAUNCH_BOUND_BELOW

    def _doubtful(self, attachment: Attachment) -> bool:
        return runs_free(attachment) and not attachment.client.group.spans_cards

    def _active(self, attachment: Attachment) -> bool:
        """The client uses the card, or asks to."""
        state = attachment.compute
        return state.engaged > 0 or self.node.now < state.active_at + ACTIVE_FOR

    def _contends(self, attachment: Attachment) -> bool:
        return self._active(attachment) and not attachment.compute.ignorant and not overlaps(attachment)

    @staticmethod
    def _capped(attachment: Attachment) -> bool:
        return attachment.client.group.core_percent < WHOLE

    def _promised(self, attachment: Attachment) -> bool:
        return self._capped(attachment) or attachment.client.group.floor_on(attachment.gpu.uuid) > 0

    def _takes_slices(self, attachment: Attachment) -> bool:
        if not self.node.settings.anti_thrash or attachment.compute.ignorant:
            return False
        if self._capped(attachment):
            return True
        if not attachment.gpu.compute.contended or overlaps(attachment):
            return False
        return attachment.standing is Standing.RUNNING or attachment.compute.in_slices

    def _in_flight(self, attachment: Attachment, active: list[Attachment]) -> float:
        """Seconds of work that the client may have in flight in a slice."""
        if attachment.compute.kind is Kind.LAUNCH_BOUND:
            return IN_FLIGHT_LOOSE
        others = [other for other in active if other is not attachment]
        if not others:
            return 2 * IN_FLIGHT_BUSY
        if any(other.compute.urgent for other in others):
            return IN_FLIGHT_URGENT
        return IN_FLIGHT if any(other.compute.rhythm.thinks for other in active) else IN_FLIGHT_BUSY

    def _set_terms(self, attachment: Attachment, slices: bool, in_flight: float) -> None:
        state = attachment.compute
        in_flight = in_flight if slices else 0.0
        if state.in_slices is slices and state.in_flight == in_flight:
            return
        if state.in_slices is not slices:
            state.in_slices, state.terms_at = slices, self.node.now
        state.in_flight = in_flight
        self.node.commands.append(SetTerms(attachment.client.id, attachment.gpu.uuid, slices, in_flight))

    # --- quotas and shares

    def _set_quotas(self, gpu: GpuState) -> None:
        """Bring accounts in line with their groups' quotas. An account goes with its group, so a debt outlives a
        process."""
        card, now, groups = gpu.compute, self.node.now, self.node.groups
        for name in [name for name in card.accounts if name not in groups]:
            del card.accounts[name]
            card.scaling_logged.pop(name, None)
        card.capped = any(map(self._capped, gpu.attachments.values()))
        for name, account in card.accounts.items():
            group = groups[name]
            cap, floor = group.core_percent / WHOLE, group.floor_on(gpu.uuid) / WHOLE
            if (cap, floor) == (account.bucket.cap, account.floor):
                continue
            for slice in open_slices(card):
                if slice.attachment.client.group.id == name:
                    used = min(now - slice.since, LONGEST) if slice.length is None else now - slice.since
                    account.charge(used - slice.billed, now)
                    slice.attachment.compute.rhythm.used(used - slice.counted)
                    slice.since, slice.billed, slice.counted = now, 0.0, 0.0
            account.bucket.restart(cap, now)
            account.floor = floor
            self._bound_lag(card, account, LONGEST)

    def rhythm_changed(self, gpu: GpuState) -> None:
        """A client woke up: its want counts for the shares, and whether it thinks for what all may have in flight."""
        active = [attachment for attachment in gpu.running.values() if self._active(attachment)]
        for attachment in gpu.attachments.values():
            self._set_terms(attachment, attachment.compute.in_slices, self._in_flight(attachment, active))
        self.set_shares(gpu)

    def set_shares(self, gpu: GpuState) -> None:
        """Share the card among the live groups. Their lags stay what they are. A group that is not live has the share
        that it would have if it were alone with its quota."""
        card, now = gpu.compute, self.node.now
        card.wants_changed = False
        live: dict[str, list[Attachment]] = {}
        for attachment in card.live:
            live.setdefault(attachment.client.group.id, []).append(attachment)
            self.account(attachment)
        time = self.virtual_time(card)
        shares = fair([self._demand(gpu, members) for members in live.values()])
        for members, fair_share in zip(live.values(), shares, strict=True):
            account, share = self.account(members[0]), max(fair_share, LEAST_SHARE)
            if time is not None and share != account.share:
                account.virtual = lag.rescaled(account, time, share)
                account.share = share
        thinks = any(attachment.compute.rhythm.thinks for attachment in card.live)
        card.longest = SLICE if thinks else LONGEST
        reach = len(gpu.attachments) * quantum(self.node.settings, gpu.stall) if gpu.turns else 0.0
        bursts = {
            name: max(attachment.compute.rhythm.burst for attachment in members) for name, members in live.items()
        }
        for name, account in card.accounts.items():
            account.set_depth(bursts.get(name, LONGEST), reach, now)

    def _demand(self, gpu: GpuState, members: list[Attachment]) -> Demand:
        group = members[0].client.group
        want = min(1.0, sum(attachment.compute.rhythm.want for attachment in members))
        return Demand(want, group.floor_on(gpu.uuid) / WHOLE, group.core_percent / WHOLE)

    def _log_scaling(self, gpu: GpuState) -> None:
        card = gpu.compute
        quotas = {attachment.client.group.id: attachment.client.group.core_percent for attachment in card.live}
        total = sum(quotas.values())
        if total <= WHOLE or all(percent == WHOLE for percent in quotas.values()):
            card.scaling_logged.clear()
            return
        for attachment in card.live:
            name = attachment.client.group.id
            percent = quotas[name]
            if card.scaling_logged.get(name) != (percent, total):
                card.scaling_logged[name] = (percent, total)
                self._log(
                    Level.INFO,
                    f"Quota scaling: client {attachment.client.hex} limit {percent}%, total {total}%, "
                    f"scaled to {percent * WHOLE / total:.1f}%",
                )

    def wake_up(self, attachment: Attachment) -> None:
        """The client asks after a while: what its group is owed, and owes, is bounded. A group that was away
        for long begins level with the others."""
        account = self.account(attachment)
        away = not account.engaged and self.node.now >= account.left_at + ACTIVE_FOR
        self._bound_lag(attachment.gpu.compute, account, 0.0 if away else LONG)

    # --- log lines

    def log_throttling(self, attachment: Attachment) -> None:
        """Log, once per window, what was used and allowed since the last time."""
        account, now = self.account(attachment), self.node.now
        window = self.node.settings.compute_window
        if now - account.logged_at < window:
            return
        account.bucket.fill(now)
        if account.logged_at >= 0.0:
            used, allowed = account.used - account.logged_used, account.bucket.filled - account.logged_filled
            self._log(
                Level.INFO,
                f"Throttling client {attachment.client.hex} (Used: {used * 1e3:.0f}/{allowed * 1e3:.0f} ms, "
                f"quota {account.bucket.cap:.0%}, last {now - account.logged_at:.1f} s)",
            )
        account.logged_at, account.logged_used, account.logged_filled = now, account.used, account.bucket.filled

    def log_debt(self, attachment: Attachment, seconds: float) -> None:
        """Log, once per window, that a client ran on after its slice."""
        account, now = self.account(attachment), self.node.now
        if now - account.debt_logged_at >= self.node.settings.compute_window:
            account.debt_logged_at = now
            pause = max(0.0, -account.bucket.level) / account.bucket.cap
            self._log(
                Level.INFO,
                f"Client {attachment.client.hex} ran {seconds * 1e3:.0f} ms beyond its turn, in kernels that cannot be "
                f"interrupted: billed as debt, it pauses for {pause:.1f} s",
            )

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))
