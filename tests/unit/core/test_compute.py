"""Compute slices, one behaviour at a time: who takes them, who is next, what is billed, what silent clients get."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.compute.policy.lag import lag
from nvshare.core.compute.policy.regime import Kind
from nvshare.core.compute.state import Delivered
from nvshare.core.settings import Mode, Priority, SliceEnd
from nvshare.core.snapshot import take
from tests.unit.core.core_scene import GIB, A, B, cores, process_in
from tests.unit.core.core_stage import BUSY, TINY, Stage, contending, given, of


def test_one_busy_client_runs_freely() -> None:
    stage = Stage()
    told = stage.start(1) + stage.use(1)
    assert not of(told, c.SetTerms)


def test_two_busy_clients_take_slices_of_forty_milliseconds() -> None:
    stage = Stage()
    stage.start(1)
    stage.start(2)
    told = stage.use(1, 2)
    assert of(told, c.SetTerms) == [c.SetTerms(1, A, True, 0.004), c.SetTerms(2, A, True, 0.004)]
    assert given(stage.ask(1)) == [(1, 0.04)]
    assert not given(stage.ask(2))
    stage.pass_time(0.04)
    assert given(stage.over(1, 0.04)) == [(2, 0.04)]


def test_beside_a_client_that_thinks_slices_are_of_twenty_milliseconds_with_little_in_flight() -> None:
    # GIVEN two busy clients
    stage = contending(1, 2)
    # WHEN one of them is seen to pause for longer than it works
    stage.work(2, 0.005, then=0.02)
    stage.ask(1)
    # THEN both may have no more than a millisecond in flight, so that it is served soon when it wakes up
    assert of(stage.ask(2), c.SetTerms) == [c.SetTerms(1, A, True, 0.0013), c.SetTerms(2, A, True, 0.0013)]
    assert stage.attachment(1).gpu.compute.longest == 0.02


def test_the_next_slice_begins_when_little_of_the_last_one_is_left() -> None:
    stage = contending(1, 2, asking=True)
    stage.pass_time(0.04)
    assert not given(stage.over(1, 0.04, pending=0.01, wants=False))
    assert not given(stage.pass_time(0.0079))
    assert given(stage.pass_time(0.0002)) == [(2, 0.04)]


def test_status_says_what_each_waits_for() -> None:
    def waits() -> list[str | None]:
        snapshot = take(stage.scheduler._node, stage.now)
        return [client.gpus[0].waiting_for_turn for client in snapshot.clients]

    stage = contending(1, 2, asking=True)
    stage.start(3, core_limit=10)
    stage.pass_time(0.04)
    stage.over(1, 0.04, pending=0.001)
    holder = stage.attachment(2).client.hex
    assert waits()[:2] == ["the end of its own work", None]
    stage.over(1, 0.041)
    stage.ask(3)
    assert waits() == [f"compute turn of {holder}, 40 ms more", None, f"compute turn of {holder}, 40 ms more"]
    stage.account(3).bucket.level = -1.0
    stage.pass_time(0.001)
    stage.over(2, 0.001)
    assert waits()[2] == "its quota of 10 %"


def test_status_tells_what_was_delivered_until_a_client_last_spoke() -> None:
    samples = Delivered()
    for quarter in range(9):
        samples.note(0.25 * quarter, 0.9 * 0.25 * quarter)
    assert samples.over(1.0, 2.0) == pytest.approx(0.9)
    assert samples.over(1.0, 2.24) == pytest.approx(0.9)  # the next report is on its way
    assert samples.over(1.0, 2.5) == pytest.approx(0.45)  # there is none
    assert samples.over(1.0, 4.0) == 0.0


def test_status_shows_no_scaled_quota_of_one_who_runs_freely() -> None:
    def scaled() -> list[float]:
        return [client.gpus[0].scaled_quota for client in take(stage.scheduler._node, stage.now).clients]

    stage = Stage()
    stage.start(1)
    stage.start(2, core_limit=30)
    stage.use(1, 2)
    stage.ask(1)
    stage.ask(2)
    stage.send(e.LimitsChanged(stage.now, "process:2", core_limit=cores(30)))
    assert scaled() == [76.9, 23.1]
    state = stage.attachment(1).compute
    state.kind, state.trust = Kind.LAUNCH_BOUND, 60.0
    stage.send(e.LimitsChanged(stage.now, "process:2", core_limit=cores(31)))
    assert scaled() == [100.0, 31.0]


def test_when_the_neighbour_is_gone_the_other_runs_freely_again() -> None:
    stage = contending(1, 2)
    stage.ask(1)
    assert of(stage.gone(2), c.SetTerms) == [c.SetTerms(1, A, False)]
    assert stage.slice(1) == 0


def test_a_quota_takes_slices_from_the_first_moment() -> None:
    stage = Stage()
    assert of(stage.start(1, core_limit=30), c.SetTerms) == [c.SetTerms(1, A, True, 0.008)]
    assert given(stage.ask(1)) == [(1, 0.04)]


def test_a_slice_ends_with_its_credit_and_the_next_begins_with_credit_for_half_of_one() -> None:
    # GIVEN one at 30 % alone, which begins with a bucket of 58 ms
    stage = Stage()
    stage.start(1, core_limit=30)
    stage.ask(1)
    # WHEN it has used all of that, and what it earned meanwhile
    slice = stage.attachment(1).compute.slice
    while slice.end > stage.now + 1e-9:
        stage.pass_time(slice.end - stage.now)
    assert 0.058 < stage.now <= 0.058 / 0.7 + 1e-9
    assert not given(stage.over(1, stage.now))
    # THEN it waits until it can have 20 ms: it earns 30 % of them itself
    assert not given(stage.pass_time(0.02 * 0.7 / 0.3 - 0.001))
    assert given(stage.pass_time(0.002)) == [(1, 0.02)]


def lengths(answer: Sequence[c.Command]) -> list[float | None]:
    return [None if slice.length is None else round(slice.length, 6) for slice in of(answer, c.GiveSlice)]


def parts(stage: Stage, *clients: int, seconds: float) -> list[float]:
    """The parts of the card's time that clients use which always want it, one after the other."""
    for client in clients:
        stage.ask(client)
    used = dict.fromkeys(clients, 0.0)
    until = stage.now + seconds
    while stage.now < until:
        holder = next((client for client in clients if stage.slice(client)), None)
        if holder is None:
            stage.pass_time(0.0005)
            continue
        slice = stage.attachment(holder).compute.slice
        while slice.end > stage.now + 1e-9:
            stage.pass_time(slice.end - stage.now)
        used[holder] += stage.now - slice.given_at
        stage.over(holder, stage.now - slice.given_at)
    return [used[client] / seconds for client in clients]


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ((30, 60), [0.3, 0.6]),
        ((80, 40), [2 / 3, 1 / 3]),
        ((100, 80), [5 / 9, 4 / 9]),
        ((10, 90), [0.1, 0.9]),
        ((60, 50, 40), [0.4, 1 / 3, 4 / 15]),
        ((5, 100, 100), [5 / 205, 100 / 205, 100 / 205]),
        ((100, 100, 100), [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_clients_that_always_want_the_card_use_it_by_their_quotas(
    quotas: tuple[int, ...], expected: list[float]
) -> None:
    stage = Stage()
    clients = range(1, len(quotas) + 1)
    for client, percent in zip(clients, quotas, strict=True):
        stage.start(client, core_limit=percent if percent < 100 else None)
    stage.use(*clients)
    assert parts(stage, *clients, seconds=12.0) == [pytest.approx(part, abs=0.008) for part in expected]


def test_what_runs_on_after_a_slice_is_paid_back_before_the_next_one() -> None:
    # GIVEN one with a tenth of the card, whose work goes on for 4 ms after each slice
    stage = Stage()
    stage.start(1, core_limit=10)
    stage.ask(1)
    used, began = 0.0, None
    for step in range(200):
        if step == 20:  # what it began with is used up
            used, began = 0.0, stage.now
        slice = stage.attachment(1).compute.slice
        while slice.end > stage.now + 1e-9:
            stage.pass_time(slice.end - stage.now)
        stage.pass_time(0.004)
        used += stage.now - slice.given_at
        stage.over(1, stage.now - slice.given_at)
        while stage.attachment(1).compute.slice is None:
            stage.pass_time(0.001)
    # THEN it uses a tenth of the card all the same
    assert began is not None
    assert used / (stage.now - began) == pytest.approx(0.1, rel=0.02)


def test_a_client_without_a_quota_is_given_its_whole_slice_at_once() -> None:
    stage = contending(1, 2, asking=True)
    for client in (1, 2, 1, 2):
        stage.pass_time(0.04)
        stage.over(client, 0.04)
    assert stage.attachment(1).compute.slice.length == pytest.approx(0.04)


@pytest.mark.parametrize("clients", [(1,), (1, 2)], ids=["alone", "while another waits"])
def test_all_of_a_slice_is_billed(clients: tuple[int, ...]) -> None:
    stage = Stage()
    for client in clients:
        stage.start(client, core_limit=80)
        stage.ask(client)
    stage.pass_time(0.04)
    stage.over(1, 0.04, wants=False)
    assert stage.account(1).used == pytest.approx(0.04, abs=1e-9)


def test_a_launch_bound_client_with_a_quota_is_not_looked_at_closely() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.pass_time(0.3)
    answer: list[c.Command] = []
    for _ in range(3):
        stage.ask(1)
        stage.pass_time(0.05)
        answer += stage.over(1, 0.05, ratio=TINY, wants=False)
        stage.pass_time(0.2)
    assert of(answer, c.SetTerms) == [c.SetTerms(1, A, True, 0.05)]


def test_slices_of_a_launch_bound_client_with_a_quota_follow_one_another_as_long_as_it_has_credit() -> None:
    # GIVEN one that was found launch-bound, beside a busy one with a quota
    stage = Stage()
    stage.start(1, core_limit=75)
    for _ in range(3):
        stage.pass_time(1.0)
        stage.ask(1)
        stage.pass_time(0.05)
        stage.over(1, 0.05, ratio=TINY, wants=False)
    assert kinds(stage, 1) == [Kind.LAUNCH_BOUND]
    stage.start(2, core_limit=50)
    stage.pass_time(1.0)
    stage.ask(2)
    # WHEN it asks; THEN it has slices of 40 ms beside the other's, which goes on
    assert given(stage.ask(1)) == [(1, 0.04)]
    assert not stage.attachment(1).compute.slice.exclusive
    stage.pass_time(0.035)
    assert stage.slice(2)
    stage.over(2, 0.035)
    stage.pass_time(0.005)
    assert given(stage.over(1, 0.04)) == [(1, 0.04)]
    # AND none without credit
    stage.account(1).bucket.level = 0.0
    stage.pass_time(0.04)
    assert 1 not in [client for client, _ in given(stage.over(1, 0.04))]


def test_more_may_be_in_flight_while_nobody_else_uses_the_card() -> None:
    stage = Stage()
    alone = of(stage.start(1, core_limit=50) + stage.use(1), c.SetTerms)
    beside = of(stage.start(2) + stage.use(2), c.SetTerms)
    assert alone == [c.SetTerms(1, A, True, 0.008)]
    assert c.SetTerms(1, A, True, 0.004) in beside
    assert c.SetTerms(1, A, True, 0.008) in stage.gone(2) + stage.use(1)


def test_a_quota_that_is_lowered_counts_for_the_rest_of_the_slice() -> None:
    # GIVEN one alone in the midst of its slice, which at 90 % goes on for most of a second
    stage = Stage()
    stage.start(1, core_limit=90)
    stage.ask(1)
    stage.pass_time(0.045)
    # WHEN its quota is lowered, THEN the slice ends when the smaller bucket, of 46 ms, is empty
    stage.limit("process:1", core_limit=10)
    stage.pass_time(0.045)
    slice = stage.attachment(1).compute.slice
    assert 0.09 < slice.end <= 0.045 + 0.046 / 0.9 + 0.0001
    assert not of(stage.pass_time(0.01), c.GiveSlice)


def test_a_client_that_is_owed_goes_on_until_another_is_owed_half_a_slice() -> None:
    # GIVEN a holder that is owed 50 ms more than the one that waits for it
    stage = contending(1, 2, asking=True)
    stage.account(1).virtual -= 0.1
    # WHEN its slice is about to end; THEN it goes on until the other is owed 20 ms
    stage.pass_time(0.04)
    assert stage.attachment(1).compute.slice.length == pytest.approx(0.07)
    stage.pass_time(0.03)
    assert given(stage.over(1, 0.07)) == [(2, 0.04)]


def test_who_keeps_others_waiting_is_billed_for_it_whatever_it_says() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.start(2, core_limit=50)
    stage.ask(1)
    stage.ask(2)
    stage.pass_time(0.05)
    stage.over(1, used=0.0)
    assert stage.account(1).used == pytest.approx(0.048)


def test_nobody_is_billed_for_more_than_the_time_that_passed() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.ask(1)
    stage.pass_time(0.05)
    stage.over(1, used=1e6)
    assert stage.account(1).used == pytest.approx(0.05)


def test_others_go_on_beside_a_client_that_does_not_end_its_slice() -> None:
    stage = contending(1, 2, asking=True)
    answer = stage.pass_time(0.05 + 1.5)
    assert given(answer)[-1] == (2, 0.04)
    warnings = [line.text for line in of(answer, c.Log) if line.level is c.Level.WARN]
    assert len(warnings) == 1
    assert "did not end its compute turn" in warnings[0]


@pytest.mark.parametrize("clients", [(1,), (1, 2, 3)], ids=["alone with a quota", "of three"])
def test_a_client_that_was_stopped_in_its_slice_has_others_when_it_wakes_up(clients: tuple[int, ...]) -> None:
    # GIVEN a client that said nothing for so long that its slice was given up
    stage = Stage()
    for client in clients:
        stage.start(client, core_limit=50)
        stage.ask(client)
    number = stage.slice(1)
    stage.pass_time(2.0)
    assert stage.slice(1) == 0
    # WHEN it ends that slice and wants another; THEN it has one: it will not ask again
    answer = stage.send(e.SliceOver(stage.now, 1, A, number, 0.05, 0.05, 0.0, SliceEnd.ENDED, wants=True))
    answer += stage.pass_time(10.0)
    assert 1 in [slice.client for slice in of(answer, c.GiveSlice)]


def test_nobody_is_taken_for_silent_after_a_scheduler_that_stood_still() -> None:
    # GIVEN a slice that ended while the scheduler heard nothing for seconds
    stage = contending(1, 2, asking=True)
    stage.now += 3.0
    # WHEN it looks before it reads what was said; THEN it waits for that
    looked = stage.send(e.TimerFired(stage.now))
    assert not [line for line in of(looked, c.Log) if line.level is c.Level.WARN]
    assert given(stage.over(1, 0.04)) == [(2, 0.04)]


def test_a_slice_that_goes_on_after_its_end_was_noticed_is_not_given_up() -> None:
    # GIVEN a slice whose end is seen in the very moment in which the only one who waited for it is gone
    stage = contending(1, 2, 3, asking=True)
    stage.over(1, 0.0, wants=False, reason=SliceEnd.IDLE)
    stage.over(2, 0.0, wants=False, reason=SliceEnd.IDLE)
    stage.ask(1)
    slice = stage.attachment(3).compute.slice
    stage.now = slice.end + 0.0005
    stage.send(e.ClientGone(stage.now, 1))
    assert slice.end > stage.now
    assert slice.deadline is None
    # WHEN it goes on for long; THEN nobody thinks that it is silent, and its quota finds it
    for _ in range(4):
        stage.pass_time(0.5)
        stage.use(2, 3)
    assert stage.attachment(3).compute.slice is slice
    changed = stage.limit("process:3", core_limit=10)
    changed += stage.pass_time(0.1)
    assert [given.number for given in of(changed, c.GiveSlice)] == [slice.number]
    assert slice.end < stage.now


def test_high_priority_ends_the_slice_of_others_at_once_when_it_wakes_up() -> None:
    stage = Stage()
    stage.start(1)
    stage.start(2, priority=Priority.HIGH)
    stage.use(1, 2)
    stage.work(2, 0.005, then=0.01)
    stage.ask(1)
    stage.pass_time(0.0001)
    assert of(stage.ask(2), c.EndSlice) == [c.EndSlice(1, A, 2)]


def test_beside_high_priority_there_is_little_in_flight() -> None:
    stage = Stage()
    stage.start(1)
    stage.start(2, priority=Priority.HIGH)
    assert of(stage.use(1, 2), c.SetTerms) == [c.SetTerms(1, A, True, 0.0004), c.SetTerms(2, A, True, 0.004)]


def test_a_client_that_was_launch_bound_for_long_does_not_wait_for_seconds_when_it_is_busy() -> None:
    # GIVEN a launch-bound client at 74 %, whose slices run beside those of two others for 20 s
    stage = Stage()
    for client, percent in ((1, 74), (2, 60), (3, 60)):
        stage.start(client, core_limit=percent)
    state = stage.attachment(1).compute
    state.kind, state.trust = Kind.LAUNCH_BOUND, 2.0
    stage.use(1, 2, 3)
    stage.limit("process:1", core_limit=74)
    for client in (1, 2, 3):
        stage.ask(client)
    seen, latest = [], 0.0
    while stage.now < 26.0:
        stage.pass_time(0.002)
        for client in (1, 2, 3):
            slice = stage.attachment(client).compute.slice
            if slice is not None and (slice.told_to_end or slice.end <= stage.now + 1e-9):
                at_work = TINY if client == 1 and stage.now < 20.0 else BUSY
                stage.over(client, stage.now - slice.given_at, ratio=at_work)
        seen.append(state.kind)
        # WHEN it keeps the card busy and is measured again
        # THEN it is not kept waiting for what it used beside them
        latest = stage.now if stage.slice(1) else latest
        assert stage.now - latest < 0.3
    assert Kind.BUSY in seen


def waker_beside(*busy: int) -> tuple[Stage, int]:
    """These clients always want the card; the one that has a slice. 9 has bursts of 5 ms and thinks since a while."""
    stage = contending(*busy, 9)
    for _ in range(4):
        stage.work(9, 0.005, then=0.02)
    parts(stage, *busy, seconds=0.2)
    stage.pass_time(0.004)
    return stage, next(client for client in busy if stage.slice(client))


def test_a_waking_client_that_is_owed_takes_the_card() -> None:
    stage, holder = waker_beside(1, 2)
    assert of(stage.ask(9), c.EndSlice) == [c.EndSlice(holder, A, stage.slice(holder))]
    assert [client for client, _ in given(stage.over(holder, 0.004))] == [9]


def test_a_client_takes_the_card_once_when_it_wakes_up() -> None:
    # GIVEN one that woke up and has had the card
    stage, holder = waker_beside(1, 2)
    stage.ask(9)
    assert stage.attachment(9).compute.woke
    stage.over(holder, 0.004)
    assert stage.slice(9)
    # WHEN its burst goes on; THEN it has not woken up again
    stage.pass_time(0.005)
    stage.over(9, 0.005)
    stage.ask(9)
    assert not stage.attachment(9).compute.woke


def test_a_slice_ends_with_its_credit_also_while_others_wait() -> None:
    stage = Stage()
    for client in (1, 2):
        stage.start(client, core_limit=20)
    stage.ask(1)
    stage.over(1, 0.0, wants=False)
    stage.account(1).bucket.fill(stage.now)
    stage.account(1).bucket.level = 0.02
    stage.ask(1)
    stage.ask(2)
    assert stage.attachment(1).compute.slice.length == pytest.approx(0.025)
    stage.pass_time(0.025)
    assert [client for client, _ in given(stage.over(1, 0.025))] == [2]


def test_a_launch_bound_client_runs_freely_beside_slices() -> None:
    stage = contending(1, 2)
    stage.pass_time(0.3)
    for _ in range(2):
        stage.ask(1)
        stage.pass_time(0.05)
        answer = stage.over(1, 0.05, ratio=TINY, wants=False)
    assert stage.attachment(1).compute.kind is Kind.LAUNCH_BOUND
    assert c.SetTerms(1, A, False) in answer


def take_slices(stage: Stage, *rounds: dict[int, float]) -> None:
    """One after the other, 50 ms each; the card works for them that part of the time."""
    for each in rounds:
        for client, ratio in each.items():
            stage.ask(client)
            stage.pass_time(0.05)
            stage.over(client, 0.05, ratio=ratio, wants=False)


def kinds(stage: Stage, *clients: int) -> list[Kind]:
    return [stage.attachment(client).compute.kind for client in clients]


def test_nobody_is_judged_while_work_that_others_submitted_freely_may_run() -> None:
    stage = contending(1, 2)
    take_slices(stage, {1: TINY}, {1: TINY}, {1: TINY})
    assert kinds(stage, 1) == [Kind.UNKNOWN]
    stage.pass_time(0.3)
    take_slices(stage, {1: TINY}, {1: TINY})
    assert kinds(stage, 1) == [Kind.LAUNCH_BOUND]


def run_freely(stage: Stage, seconds: int, *clients: int) -> None:
    """They report that they used the card all the time."""
    for _ in range(4 * seconds):
        stage.use(*clients)
        stage.pass_time(0.25)
    stage.use(*clients)


def test_a_second_look_at_a_launch_bound_client_takes_two_slices() -> None:
    stage = contending(1, 2)
    stage.pass_time(0.3)
    take_slices(stage, *[{2: BUSY, 1: TINY}] * 3)
    run_freely(stage, 3, 1, 2)
    assert kinds(stage, 1, 2) == [Kind.LAUNCH_BOUND, Kind.BUSY]
    run_freely(stage, 2, 1, 2)
    assert kinds(stage, 1, 2) == [Kind.UNKNOWN, Kind.BUSY]
    take_slices(stage, *[{2: BUSY, 1: TINY}] * 2)
    assert kinds(stage, 1, 2) == [Kind.LAUNCH_BOUND, Kind.BUSY]


def test_a_launch_bound_client_that_is_seen_to_use_little_is_not_looked_at_again() -> None:
    # WHEN it runs beside others for a minute and uses a tenth of the card's time
    stage = contending(1, 2)
    stage.pass_time(0.3)
    take_slices(stage, *[{2: BUSY, 1: TINY}] * 3)
    used = stage.now + 1.0
    for second in range(60):
        stage.use(2)
        stage.send(e.UsageReported(stage.now, 1, A, used + second * 0.1, 1, 1024))
        stage.pass_time(1.0)
        # THEN nobody is kept waiting for it
        assert kinds(stage, 1, 2) == [Kind.LAUNCH_BOUND, Kind.BUSY]
    # AND when it uses all of it, it is looked at after a minute at most
    run_freely(stage, 61, 1, 2)
    assert kinds(stage, 1, 2) == [Kind.UNKNOWN, Kind.BUSY]


def test_a_busy_client_that_looks_at_its_results_stays_busy() -> None:
    stage = contending(1, 2)
    stage.pass_time(0.3)
    take_slices(stage, *[{2: BUSY, 1: BUSY}] * 3)
    for _ in range(8):
        stage.ask(1)
        stage.pass_time(0.005)
        stage.over(1, 0.004, ratio=TINY, wants=False, reason=SliceEnd.IDLE)
    assert kinds(stage, 1, 2) == [Kind.BUSY, Kind.BUSY]


def test_a_client_that_begins_with_a_few_short_slices_is_not_judged_by_them() -> None:
    stage = contending(1, 2)
    stage.pass_time(0.3)
    take_slices(stage, *[{2: BUSY}] * 3)
    for _ in range(8):
        stage.ask(1)
        stage.pass_time(0.005)
        stage.over(1, 0.004, ratio=TINY, wants=False, reason=SliceEnd.IDLE)
    assert kinds(stage, 1) == [Kind.UNKNOWN]
    take_slices(stage, *[{2: BUSY, 1: BUSY}] * 2)
    assert kinds(stage, 1, 2) == [Kind.BUSY, Kind.BUSY]


def test_a_launch_bound_client_is_told_from_a_busy_one_beside_another_that_runs_freely() -> None:
    stage = contending(1, 2, 3)
    stage.pass_time(0.3)
    take_slices(stage, *[{3: BUSY, 1: TINY, 2: TINY}] * 4)
    assert kinds(stage, 1, 2, 3) == [Kind.LAUNCH_BOUND, Kind.LAUNCH_BOUND, Kind.BUSY]


def test_beside_one_that_runs_freely_nobody_is_found_busy() -> None:
    stage = contending(1, 2, 3)
    stage.pass_time(0.3)
    take_slices(stage, *[{1: TINY}] * 2)
    assert kinds(stage, 1) == [Kind.LAUNCH_BOUND]
    take_slices(stage, *[{2: BUSY}] * 3)
    assert kinds(stage, 2) == [Kind.UNKNOWN]


def holders(stage: Stage, clients: Sequence[int], lengths: Sequence[float]) -> list[int]:
    """Who has the slice, one after the other, when all of them always want one."""
    found = []
    for client in clients:
        stage.ask(client)
    for length in lengths:
        holder = next(client for client in clients if stage.slice(client))
        found.append(holder)
        stage.pass_time(length)
        stage.over(holder, length)
    return found


def test_equal_tasks_go_round_although_no_two_slices_are_equally_long() -> None:
    # WHEN three equal tasks always want the card, and use a little more or less than they were given
    stage = contending(1, 2, 3)
    lengths = [0.0385, 0.0415, 0.04, 0.0415, 0.0385, 0.0395] * 10
    found = holders(stage, (1, 2, 3), lengths)
    # THEN each has as many slices as the others, and nobody waits for longer than the other two have two slices each
    assert [found.count(client) for client in (1, 2, 3)] == [pytest.approx(20, abs=1)] * 3
    assert all({1, 2, 3} <= set(found[start : start + 5]) for start in range(len(found) - 5))


def test_who_always_takes_longer_has_fewer_slices() -> None:
    stage = contending(1, 2, asking=True)
    used = {1: 0.0, 2: 0.0}
    for _ in range(200):
        holder = 1 if stage.slice(1) else 2
        length = 0.05 if holder == 1 else 0.04
        used[holder] += length
        stage.pass_time(length)
        stage.over(holder, length)
    assert used[1] == pytest.approx(used[2], abs=0.06)


def test_a_drop_ends_the_slice() -> None:
    stage = Stage(Mode.SERIAL, quantum=10.0)
    stage.start(1, core_limit=50)
    stage.start(2, core_limit=50)
    stage.ask(1)
    assert of(stage.pass_time(10.0), c.Drop)
    assert stage.slice(1) == 0


def test_a_gang_without_a_quota_runs_freely() -> None:
    stage = Stage(gpus=(A, B))
    stage.start(1, A, B)
    stage.start(2, A)
    assert not of(stage.use(1, 2), c.SetTerms)


def test_a_job_with_a_process_per_card_runs_freely_as_long_as_it_has_several() -> None:
    stage = Stage(gpus=(A, B))
    stage.start(1, A, group="run:7")
    stage.start(2, B, group="run:7")
    stage.start(3, A)
    assert not of(stage.use(1, 3), c.SetTerms)
    assert c.SetTerms(1, A, True, 0.004) in stage.gone(2)


def test_processes_of_a_group_on_one_card_take_slices_until_one_is_on_another() -> None:
    stage = Stage(gpus=(A, B))
    stage.start(1, A, group="run:7")
    stage.start(2, A, group="run:7")
    stage.use(1, 2)
    assert stage.attachment(1).compute.in_slices
    assert c.SetTerms(1, A, False) in stage.start(3, B, group="run:7")


def test_slices_of_a_job_with_a_quota_and_a_process_per_card_begin_together() -> None:
    stage = Stage(gpus=(A, B))
    for client, gpu in ((1, A), (2, B)):
        stage.start(client, gpu, group="run:7", core_limit=50)
    other = stage.scheduler._node.clients[2].gpus[B]
    stage.scheduler._slices.terms.account(other).bucket.level = -0.1
    assert not of(stage.ask(1), c.GiveSlice)
    assert of(stage.pass_time(0.3), c.GiveSlice)


def test_in_concurrent_mode_there_are_no_slices_without_quotas() -> None:
    stage = Stage(Mode.CONCURRENT)
    stage.start(1)
    stage.start(2)
    assert not of(stage.use(1, 2), c.SetTerms)
    changed = stage.send(e.LimitsChanged(stage.now, "process:1", core_limit=cores(50)))
    assert {command.client for command in of(changed, c.SetTerms)} == {1, 2}


def test_without_anti_thrash_nobody_takes_slices() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.ask(1)
    assert c.SetTerms(1, A, False) in stage.change(anti_thrash=False)
    assert stage.slice(1) == 0


def test_a_library_that_knows_no_slices_is_left_alone() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.pass_time(3.0)
    assert c.SetTerms(1, A, False) in stage.use(1)


def test_who_was_taken_for_ignorant_is_asked_again_after_a_minute() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.start(2)
    for _ in range(4):
        stage.pass_time(1.0)
        stage.use(1, 2)
    assert not stage.attachment(1).compute.in_slices
    answers: list[c.Command] = []
    for _ in range(61):
        answers += stage.pass_time(1.0) + stage.use(2)
    assert c.SetTerms(1, A, True, 0.004) in answers


def test_what_a_run_owes_is_not_forgotten_with_its_process() -> None:
    stage = Stage()
    stage.send(e.RunOpened(stage.now, process_in("process:99", 0), "job", core_limit=cores(10)))
    used = 0.0
    for client in range(1, 9):
        stage.start(client, group="run:99")
        stage.ask(client)
        stage.pass_time(0.9)
        if stage.slice(client):
            used += 0.9
            stage.over(client, 0.9, wants=False)
        stage.gone(client)
        stage.pass_time(0.1)
    assert used == pytest.approx(0.9)


def test_work_that_is_said_to_be_in_flight_is_billed_when_others_wait_for_it() -> None:
    stage = contending(1, 2, asking=True)
    stage.pass_time(0.05)
    stage.over(1, 0.05, pending=1.5, wants=False)
    stage.pass_time(1.0)
    stage.over(1, 0.0, wants=False)
    assert stage.account(1).used == pytest.approx(1.05, abs=0.01)


def test_who_waits_for_a_slice_contends_however_long_it_waits() -> None:
    stage = contending(1, 2, asking=True)
    stage.pass_time(0.05)
    stage.over(1, 0.05, pending=5.0, wants=False)
    for _ in range(4):
        stage.pass_time(1.0)
    assert stage.attachment(1).compute.in_slices
    assert stage.attachment(2).compute.in_slices


def test_two_processes_of_a_group_share_its_quota() -> None:
    stage = Stage()
    stage.start(1, group="run:7", core_limit=30)
    stage.start(2, group="run:7")
    stage.ask(1)
    stage.ask(2)
    stage.pass_time(0.09)
    assert not of(stage.over(1, 0.09), c.GiveSlice)
    assert stage.attachment(2).compute.ready_since is None


def test_without_credit_nobody_keeps_memory_that_another_could_use() -> None:
    stage = Stage(declared=8 * GIB, quantum=30.0)
    for client in (1, 2):
        stage.register(client, can_swap=True, core_limit=30 if client == 1 else None)
        stage.allocate(client, 6 * GIB)
    stage.request(1)
    stage.ask(1)
    stage.request(2)
    stage.pass_time(0.05)
    assert not of(stage.over(1, 0.05), c.Drop)
    stage.pass_time(0.04)
    assert of(stage.over(1, 0.04), c.Drop)


def test_who_is_without_credit_when_somebody_begins_to_wait_gives_its_memory_up_at_once() -> None:
    # GIVEN one that pauses for what it owes, with the card's memory to itself while nobody wants it
    stage = Stage(declared=8 * GIB, quantum=30.0)
    for client in (1, 2):
        stage.register(client, can_swap=True, core_limit=10 if client == 1 else None)
        stage.allocate(client, 6 * GIB)
    stage.request(1)
    stage.ask(1)
    stage.pass_time(0.5)
    assert not of(stage.over(1, 0.5), c.Drop)
    # WHEN another wants it, THEN nothing else has to happen before it goes on its way
    assert of(stage.request(2), c.Drop)


def test_a_new_quota_begins_among_those_who_want_the_card_not_among_the_idle() -> None:
    # GIVEN two that take slices, and a third with a quota that had one slice long ago
    stage = Stage()
    for client, percent in ((3, 50), (1, 80), (2, 40)):
        stage.start(client, core_limit=percent)
        stage.ask(client)
    stage.pass_time(0.04)
    stage.over(3, 0.04, wants=False)
    parts(stage, 1, 2, seconds=5.0)
    idle, second = stage.account(3).virtual, stage.account(2).virtual
    assert idle < second - 1.0
    # WHEN one of the two gets another quota; THEN it is owed nothing for the time before
    stage.limit("process:2", core_limit=80)
    assert all(abs(owed(stage, client)) < 0.05 for client in (1, 2))
    assert parts(stage, 1, 2, seconds=2.0) == [pytest.approx(0.5, abs=0.02)] * 2


@pytest.mark.parametrize("slept", [0.3, 1.0, 1.9])
def test_who_returns_from_a_sleep_is_owed_a_tenth_of_a_second_at_most(slept: float) -> None:
    # GIVEN one that has the card for itself for a while, and one that sleeps meanwhile
    stage = contending(1, 2)
    stage.work(2, 0.005, then=0.01)
    stage.work(2, 0.005, then=0.0)
    stage.ask(1)
    stage.pass_time(slept)
    # WHEN that one asks; THEN it has the card at once
    assert of(stage.ask(2) + stage.pass_time(0.002), c.EndSlice)
    # AND is owed no more than a tenth of a second
    assert 0.0 < owed(stage, 2) <= 0.1


@pytest.mark.parametrize("away", [0.5, 1.5, 5.0, 20.0])
@pytest.mark.parametrize("how", ["without its grant", "stopped"])
def test_who_was_away_in_the_midst_of_its_slice_does_not_keep_the_card_from_others(how: str, away: float) -> None:
    # GIVEN one of three that loses its grant in its slice, or is stopped there
    stage = contending(1, 2, 3, asking=True)
    stage.pass_time(0.01)
    number = stage.slice(1)
    if how == "stopped":
        stage.pass_time(2.0)
        assert not stage.slice(1)
    else:
        stage.release(1)
    # WHEN it comes back, while the others have always used the card
    for _ in range(int(4 * away)):
        stage.use(2, 3)
        parts(stage, 2, 3, seconds=0.25)
    if how == "stopped":
        stage.send(e.SliceOver(stage.now, 1, A, number, 0.01, 0.01, 0.0, SliceEnd.ENDED, wants=True))
    else:
        stage.request(1)
        stage.ask(1)
    # THEN it is owed a tenth of a second at most, repays what others missed while it was stopped, and shares the card
    assert owed(stage, 1) <= 0.1
    repays = stage.account(1).waits_until - stage.now
    if repays > 0.0:
        assert parts(stage, 1, 2, 3, seconds=repays)[0] == pytest.approx(0.0, abs=0.02)
    assert parts(stage, 1, 2, 3, seconds=3.0) == [pytest.approx(1 / 3, abs=0.06)] * 3


def owed(stage: Stage, client: int) -> float:
    time = stage.scheduler._slices.terms.virtual_time(stage.attachment(client).gpu.compute)
    assert time is not None
    return lag(stage.account(client), time)


def test_a_debt_survives_a_sleep_within_its_bound() -> None:
    # GIVEN two, of which one had the card for a second that was not its own, while the other waited
    stage = contending(1, 2, asking=True)
    stage.pass_time(1.0)
    stage.over(1, 1.0, wants=False, reason=SliceEnd.IDLE)
    stage.pass_time(0.02)
    # WHEN it comes back; THEN it owes a tenth of a second of that at most
    stage.ask(1)
    assert -0.1 - 1e-9 <= owed(stage, 1) < -0.03


def hesitating(quotas: tuple[int, int]) -> Stage:
    """Two with quotas: the second waits, the first has had the card for 20 ms."""
    stage = Stage()
    for client, percent in zip((1, 2), quotas, strict=True):
        stage.start(client, core_limit=percent)
    stage.ask(1)
    stage.ask(2)
    stage.pass_time(0.02)
    assert stage.slice(1)
    assert not stage.slice(2)
    return stage


def test_while_the_host_of_one_hesitates_others_have_the_card_at_once_if_they_have_credit() -> None:
    # GIVEN quotas that leave nothing of the card
    stage = hesitating((90, 10))
    # WHEN the one that has its slice submits nothing for a moment
    # THEN the other has the card at once
    assert [client for client, _ in given(stage.over(1, 0.02, wants=False, reason=SliceEnd.IDLE))] == [2]


def test_while_the_host_of_one_hesitates_the_card_idles_if_nobody_has_credit() -> None:
    stage = hesitating((90, 10))
    stage.account(2).bucket.fill(stage.now)
    stage.account(2).bucket.level = 0.0
    # WHEN it hesitates; THEN the other waits until it can have 10 ms: a cap is a cap
    assert not given(stage.over(1, 0.02, wants=False, reason=SliceEnd.IDLE))
    assert not given(stage.pass_time(0.085))
    assert given(stage.pass_time(0.01)) == [(2, 0.01)]


def test_what_others_had_while_a_host_hesitated_is_made_good() -> None:
    # GIVEN two that share the card, of which one hesitates for 20 ms now and then
    stage = contending(1, 2, asking=True)
    used = {1: 0.0, 2: 0.0}
    for step in range(400):
        holder = next((client for client in (1, 2) if stage.slice(client)), None)
        if holder is None:
            stage.pass_time(0.001)
            continue
        slice = stage.attachment(holder).compute.slice
        stage.pass_time(min(0.01, slice.end - stage.now))
        elapsed = stage.now - slice.given_at
        hesitates = holder == 1 and step % 10 == 0
        if not hesitates and slice.end > stage.now + 1e-9 and not slice.told_to_end:
            continue
        used[holder] += elapsed
        stage.over(holder, elapsed, wants=not hesitates, reason=SliceEnd.IDLE if hesitates else SliceEnd.ENDED)
        if hesitates:
            stage.pass_time(0.02)
            stage.ask(1)
    # THEN both have half of it
    assert used[1] / sum(used.values()) == pytest.approx(0.5, abs=0.03)


def test_a_change_of_quota_forgives_no_debt() -> None:
    # GIVEN one at half of the card that owes 90 ms
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.ask(1)
    stage.account(1).bucket.level = -0.045
    # WHEN its quota becomes a tenth
    stage.limit("process:1", core_limit=10)
    # THEN it owes what it owed, and pays at the new rate
    assert stage.account(1).bucket.level == pytest.approx(-0.045)
    stage.over(1, 0.0, reason=SliceEnd.TOLD)
    assert not given(stage.pass_time(0.45))
    assert given(stage.pass_time(0.1))


def test_who_asks_again_while_the_last_of_its_work_ends_was_not_idle() -> None:
    # GIVEN two that always want the card
    stage = Stage()
    shares = {1: 80, 2: 40}
    for client, percent in shares.items():
        stage.start(client, core_limit=percent)
        stage.ask(client)
    used = dict.fromkeys(shares, 0.0)
    for _ in range(300):
        holder = next(client for client in shares if stage.slice(client))
        slice = stage.attachment(holder).compute.slice
        while slice.end > stage.now + 1e-9:
            stage.pass_time(slice.end - stage.now)
        elapsed = stage.now - slice.given_at
        used[holder] += elapsed
        # WHEN they ask for the next slice after another was given one, and before the last of their work has ended
        stage.over(holder, elapsed, pending=0.0015, wants=False)
        stage.ask(holder)
        stage.send(e.SliceOver(stage.now, holder, A, slice.number, elapsed, elapsed, 0.0, SliceEnd.ENDED, wants=True))
    # THEN what they are owed is not forgiven
    assert used[1] / sum(used.values()) == pytest.approx(2 / 3, abs=0.005)


def run_on(stage: Stage, client: int, number: int, used: float, *, pending: float = 0.001) -> list[c.Command]:
    """Its library gave up waiting for the end of a kernel, or tells that it still runs, or that it has ended."""
    return stage.send(e.SliceOver(stage.now, client, A, number, used, used, pending, SliceEnd.OVERRUN, wants=False))


def test_a_kernel_of_seconds_is_billed_as_long_as_it_runs() -> None:
    # GIVEN a client with a quota whose kernel did not end with its slice
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.ask(1)
    stage.pass_time(0.09)
    stage.over(1, 0.09, pending=0.004, wants=False)
    number = stage.slice(1)
    stage.pass_time(1.0)
    # WHEN its library tells every second that it still runs, and at last that it has ended
    for _ in range(4):
        run_on(stage, 1, number, stage.now)
        assert stage.account(1).used == pytest.approx(stage.now)
        stage.pass_time(1.0)
    run_on(stage, 1, number, stage.now, pending=0.0)
    # THEN all of it is billed, and nothing is left of the slice
    assert stage.account(1).used == pytest.approx(5.09)
    assert stage.attachment(1).compute.engaged == stage.attachment(1).compute.asks


def test_who_waits_for_what_it_has_yet_to_submit_gets_another_slice() -> None:
    # GIVEN one that said that it wants another slice, and whose work does not end
    stage = Stage()
    stage.start(1, core_limit=90)
    stage.ask(1)
    stage.pass_time(0.15)
    stage.over(1, 0.15, pending=0.004)
    number = stage.slice(1)
    stage.pass_time(1.0)
    # WHEN its library no longer waits for that; THEN it has one: the work may wait for what comes in it
    answer = run_on(stage, 1, number, 0.2)
    answer += stage.pass_time(0.2)
    assert {slice.number for slice in of(answer, c.GiveSlice)} == {number + 1}


def test_who_asked_while_its_slice_closed_is_heard_when_that_is_given_up() -> None:
    stage = Stage()
    stage.start(1, core_limit=90)
    stage.ask(1)
    stage.pass_time(0.04)
    stage.over(1, 0.04, pending=0.004)
    number = stage.slice(1)
    answer = stage.pass_time(30.0)
    assert number + 1 in {slice.number for slice in of(answer, c.GiveSlice)}


def test_who_runs_beside_a_kernel_of_seconds_is_billed_half() -> None:
    # GIVEN a client whose kernel runs on for long after its slice
    stage = Stage()
    for client in (1, 2):
        stage.start(client, core_limit=50)
        stage.ask(client)
    stage.pass_time(0.09)
    stage.over(1, 0.09, pending=0.001, wants=False)
    first = stage.attachment(1).gpu.compute.lingering.keys()
    assert len(first) == 1
    number = next(iter(first))
    # WHEN its neighbour has slices meanwhile
    used = 0.0
    while stage.now < 1.0:
        if stage.slice(2):
            slice = stage.attachment(2).compute.slice
            stage.pass_time(0.09)
            used += stage.now - slice.given_at
            stage.over(2, stage.now - slice.given_at)
        else:
            stage.pass_time(0.01)
    run_on(stage, 1, number, stage.now, pending=0.0)
    # THEN each is billed half of the time in which both used the card
    assert stage.account(2).used == pytest.approx(used / 2, abs=0.01)
    assert stage.account(1).used == pytest.approx(stage.now - used / 2, abs=0.01)


def test_nobody_gets_slices_at_half_the_price_beside_a_kernel_of_its_own() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.start(2, core_limit=50)
    stage.ask(1)
    stage.pass_time(0.04)
    number = stage.slice(1)
    run_on(stage, 1, number, 0.04)
    stage.ask(1)
    stage.pass_time(0.2)
    slice = stage.attachment(1).compute.slice
    before, given_at = stage.account(1).used - slice.billed, slice.given_at
    stage.pass_time(0.05)
    stage.over(1, stage.now - given_at)
    assert stage.account(1).used - before == pytest.approx(stage.now - given_at)


def test_a_kernel_that_nobody_tells_of_any_more_is_given_up_on() -> None:
    stage = Stage()
    stage.start(1, core_limit=50)
    stage.ask(1)
    stage.pass_time(0.09)
    run_on(stage, 1, stage.slice(1), 0.09)
    assert stage.attachment(1).compute.overrun is not None
    stage.pass_time(11.0)
    assert stage.attachment(1).compute.overrun is None
    assert not stage.attachment(1).gpu.compute.lingering


def test_others_are_told_when_the_only_running_client_has_not_used_the_card_for_a_while() -> None:
    # GIVEN one that waits for its memory, beside the only client that runs, which uses the card
    stage = Stage(Mode.SERIAL)
    stage.start(1, core_limit=50)
    stage.start(2, core_limit=50)
    stage.use(1)
    assert stage.attachment(2).compute.in_flight == 0.004
    # WHEN that one pauses; THEN the other is told, without any other event
    assert c.SetTerms(2, A, True, 0.008) in stage.pass_time(3.0)
