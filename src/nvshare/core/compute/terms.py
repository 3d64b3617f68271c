"""Which clients take compute slices on a card, and with which share; sends them their terms.

The rules are in ``policy/regime.py`` and ``policy/shares.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.core.commands import Level, Log, SetTerms
from nvshare.core.compute.books import BOUND_WAIT, Book
from nvshare.core.compute.policy.regime import (
    ACTIVE_FOR,
    BACKLOG,
    EVIDENCE,
    JUDGED_FROM,
    LAUNCH_BOUND_BELOW,
    LOOK_AGAIN,
    LOOK_AGAIN_MAX,
    SEEN_OVER,
    Kind,
    blended,
    contended,
    judged,
)
from nvshare.core.compute.policy.shares import LONGEST, scaled
from nvshare.core.compute.state import AttachmentCompute, CardCompute, Slice
from nvshare.core.memory.policy.quantum import quantum
from nvshare.core.settings import Priority
from nvshare.core.state import Attachment, GpuState, Node, Standing

IN_FLIGHT = 0.004  # seconds of work that may be in flight in a slice
NOBODY_ELSE = 0.008  # the same for a client alone on the card: a host that hesitates does not let the card fall idle
LOOSE = 0.05  # the same for a launch-bound client, which has little in flight: a close watch would only slow it down
MEMORY_TURNS = 4  # turns of others for which credit is kept where memory takes turns
WHOLE = 100  # percent


def overlaps(attachment: Attachment) -> bool:
    """The client's slices are not exclusive: the card idles between its kernels, or its work waits for other cards."""
    return attachment.compute.kind is Kind.LAUNCH_BOUND or attachment.client.group.spans_cards


def open_slices(card: CardCompute) -> Iterator[Slice]:
    """Slices that were given and not handed on."""
    if card.exclusive is not None:
        yield card.exclusive
    yield from card.shared.values()


class Terms:
    def __init__(self, node: Node) -> None:
        self.node = node

    def book(self, attachment: Attachment) -> Book:
        """The book of the client's group on this card, opened where there is none."""
        known = attachment.compute.book
        return self._find_book(attachment) if known is None else known

    def _find_book(self, attachment: Attachment) -> Book:
        books, group = attachment.gpu.compute.books, attachment.client.group
        found = books.get(group.id)
        if found is None:
            found = books[group.id] = Book(1.0, credited_at=self.node.now)
            found.restart(group.core_percent / WHOLE, self.node.now, attachment.gpu.compute.clock)
            found.credit = found.length * (1.0 - found.quota)  # enough for the first slice
        attachment.compute.book = found
        return found

    def touch(self, attachment: Attachment) -> bool:
        """Note that the client uses the card; True: it had not for a while."""
        state, now = attachment.compute, self.node.now
        awoke = now - state.active_at > ACTIVE_FOR
        state.active_at = now
        return awoke

    def ignores(self, state: AttachmentCompute) -> bool:
        """The client has had time to follow its terms."""
        return self.node.now - state.terms_at > ACTIVE_FOR

    def judge(self, slice: Slice, busy: float, used: float) -> bool:
        """Learn the kind of a client from a slice; True: it changed.

        Others on the card can make a client look busier than it is, never the other way round.
        """
        state = slice.attachment.compute
        if used < JUDGED_FROM or busy <= 0.0 or not self._is_undisturbed(slice):
            return False
        alone = slice.alone and not slice.attachment.gpu.compute.free_runners
        if not alone and judged(Kind.UNKNOWN, busy / used) is not Kind.LAUNCH_BOUND:
            return False
        before = state.kind
        state.ratio = blended(state.ratio, busy, used)
        verdict = judged(before, state.ratio)
        state.evidence = state.evidence + used if verdict is Kind.LAUNCH_BOUND else 0.0
        if verdict is Kind.LAUNCH_BOUND and state.evidence < EVIDENCE and not state.trust:
            return False
        state.kind, state.judged_at = verdict, self.node.now
        if verdict is not Kind.LAUNCH_BOUND:
            state.trust = 0.0
        elif before is not Kind.LAUNCH_BOUND:
            self._trust_longer(state)
        return state.kind is not before

    @staticmethod
    def _trust_longer(state: AttachmentCompute) -> None:
        state.trust = min(LOOK_AGAIN_MAX, max(LOOK_AGAIN, 2 * state.trust))

    @staticmethod
    def _is_undisturbed(slice: Slice) -> bool:
        """No work ran beside the slice that a client had submitted before it began to take slices. Such work of the
        slice's own client counts only while little is known of it."""
        others = (
            attachment for attachment in slice.attachment.gpu.running.values() if attachment is not slice.attachment
        )
        attachments = others if slice.attachment.compute.trust else (slice.attachment, *others)
        return all(attachment.compute.backlog_until <= slice.given_at for attachment in attachments)

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
        busy = [attachment for attachment in running if self._contends(attachment)]
        was, card.contended = card.contended, contended(settings.mode, len(busy), any(map(self._capped, busy)))
        in_flight = IN_FLIGHT if sum(map(self._active, running)) > 1 else NOBODY_ELSE
        for attachment in gpu.attachments.values():
            attachment.compute.urgent = attachment.client.group.rank is Priority.HIGH
            self._set_terms(attachment, self._takes_slices(attachment), in_flight)
        free = [attachment for attachment in running if not attachment.compute.in_slices and self._active(attachment)]
        card.free_runners = len(free)
        self._set_quotas(gpu)
        self._set_shares(
            gpu, [attachment for attachment in running if attachment.compute.in_slices and self._active(attachment)]
        )
        card.look_at = min((at for at in self._expiries(running) if at > now), default=None)
        if card.contended is not was:
            how = "in compute turns" if card.contended else "freely"
            self._log(
                Level.INFO,
                f"Concurrent execution: {len(running)} tasks running, {how}: {len(busy)} keep GPU {gpu.uuid} busy",
            )

    def _expiries(self, running: list[Attachment]) -> Iterator[float]:
        """When something that is known of these clients expires."""
        for attachment in running:
            state = attachment.compute
            if state.ignorant:
                yield state.terms_at + LOOK_AGAIN_MAX
            if len(running) > 1 and self._active(attachment):
                yield state.active_at + ACTIVE_FOR
            if len(running) > 1 and self._doubtful(attachment):
                yield state.judged_at + state.trust

    def _look_again(self, running: list[Attachment]) -> None:
        """A launch-bound client may have changed, so after a while it is measured again, in a slice alone. All of them
        are measured together, without those that visibly still use little."""
        doubtful = [attachment for attachment in running if self._doubtful(attachment)]
        due = [
            attachment
            for attachment in doubtful
            if attachment.compute.judged_at + attachment.compute.trust <= self.node.now
        ]
        if not due or sum(map(self._active, running)) < 2:
            return
        for attachment in filter(self._uses_little, due):
            attachment.compute.judged_at = self.node.now
            self._trust_longer(attachment.compute)
        if all(map(self._uses_little, due)):
            return
        for attachment in doubtful:
            if not self._uses_little(attachment):
                attachment.compute.kind, attachment.compute.ratio = Kind.UNKNOWN, None

    def _uses_little(self, attachment: Attachment) -> bool:
        """The client runs freely and uses little of the card's time. Others on the card can only make it seem more."""
        part = None if attachment.compute.in_slices else attachment.compute.delivered.until_latest(SEEN_OVER)
        return part is not None and part < LAUNCH_BOUND_BELOW

    def _doubtful(self, attachment: Attachment) -> bool:
        return attachment.compute.kind is Kind.LAUNCH_BOUND and not attachment.client.group.spans_cards

    def _active(self, attachment: Attachment) -> bool:
        """The client uses the card, or asks to."""
        state = attachment.compute
        return state.engaged > 0 or self.node.now - state.active_at < ACTIVE_FOR

    def _contends(self, attachment: Attachment) -> bool:
        return self._active(attachment) and not attachment.compute.ignorant and not overlaps(attachment)

    @staticmethod
    def _capped(attachment: Attachment) -> bool:
        return attachment.client.group.core_percent < WHOLE

    def _takes_slices(self, attachment: Attachment) -> bool:
        if not self.node.settings.anti_thrash or attachment.compute.ignorant:
            return False
        if self._capped(attachment):
            return True
        if not attachment.gpu.compute.contended or overlaps(attachment):
            return False
        return attachment.standing is Standing.RUNNING or attachment.compute.in_slices

    def _set_terms(self, attachment: Attachment, slices: bool, in_flight: float) -> None:
        state = attachment.compute
        in_flight = (LOOSE if state.kind is Kind.LAUNCH_BOUND else in_flight) if slices else 0.0
        if state.in_slices is slices and state.in_flight == in_flight:
            return
        if state.in_slices is not slices:
            state.in_slices, state.terms_at = slices, self.node.now
            state.backlog_until = self.node.now + BACKLOG if slices else 0.0
        state.in_flight = in_flight
        self.node.commands.append(SetTerms(attachment.client.id, attachment.gpu.uuid, slices, in_flight))

    # --- quotas and shares

    def _set_quotas(self, gpu: GpuState) -> None:
        """Bring books in line with their groups' quotas. A book goes with its group, so a debt outlives a process."""
        card, now, groups = gpu.compute, self.node.now, self.node.groups
        for name in [name for name in card.books if name not in groups]:
            del card.books[name]
            card.scaling_logged.pop(name, None)
        card.capped = any(map(self._capped, gpu.attachments.values()))
        reach = MEMORY_TURNS * quantum(self.node.settings, gpu.stall) if gpu.turns else BOUND_WAIT
        for name, book in card.books.items():
            book.set_reach(max(BOUND_WAIT, reach), now)
            quota = groups[name].core_percent / WHOLE
            if quota == book.quota:
                continue
            for slice in open_slices(card):
                if slice.attachment.client.group.id == name:
                    elapsed = now - slice.since
                    used = elapsed if slice.length is not None else min(elapsed, LONGEST)
                    book.bill(used - slice.billed, slice.weighs(used, now) - slice.weighed, now)
                    slice.since, slice.decided, slice.billed, slice.weighed = now, False, 0.0, 0.0
            book.restart(quota, now, card.clock)

    def _set_shares(self, gpu: GpuState, active: list[Attachment]) -> None:
        card = gpu.compute
        quotas = {attachment.client.group.id: attachment.client.group.core_percent for attachment in active}
        total = sum(quotas.values())
        capped = any(percent < WHOLE for percent in quotas.values())
        card.full = total >= WHOLE
        for name, book in card.books.items():
            everybody = total / WHOLE if name in quotas else total / WHOLE + book.quota
            book.set_share(scaled(book.quota, everybody), capped or book.capped)
        if total <= WHOLE or not capped:
            card.scaling_logged.clear()
            return
        for attachment in active:
            name = attachment.client.group.id
            percent = quotas[name]
            if card.scaling_logged.get(name) != (percent, total):
                card.scaling_logged[name] = (percent, total)
                self._log(
                    Level.INFO,
                    f"Quota scaling: client {attachment.client.hex} limit {percent}%, total {total}%, "
                    f"scaled to {percent * WHOLE / total:.1f}%",
                )

    # --- log lines

    def log_throttling(self, attachment: Attachment) -> None:
        """Log, once per window, what was used and allowed since the last time."""
        book, now = self.book(attachment), self.node.now
        window = self.node.settings.compute_window
        if now - book.logged_at < window:
            return
        first = book.logged_at < 0.0
        if not first:
            used, allowed = book.used - book.logged_used, book.allowed - book.logged_allowed
            self._log(
                Level.INFO,
                f"Throttling client {attachment.client.hex} (Used: {used * 1e3:.0f}/{allowed * 1e3:.0f} ms, "
                f"quota {book.quota:.0%}, last {now - book.logged_at:.1f} s)",
            )
        book.logged_at, book.logged_used, book.logged_allowed = now, book.used, book.allowed

    def log_debt(self, attachment: Attachment, seconds: float) -> None:
        """Log, once per window, that a client ran on after its slice."""
        book, now = self.book(attachment), self.node.now
        if now - book.debt_logged_at >= self.node.settings.compute_window:
            book.debt_logged_at = now
            self._log(
                Level.INFO,
                f"Client {attachment.client.hex} ran {seconds * 1e3:.0f} ms beyond its turn, in kernels that cannot be "
                f"interrupted: billed as debt, it pauses for {max(0.0, -book.credit) / book.quota:.1f} s",
            )

    def _log(self, level: Level, text: str) -> None:
        self.node.commands.append(Log(level, text))
