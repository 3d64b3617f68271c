"""Who had which card when: what a recorder is told, and what it makes of it."""

from __future__ import annotations

import itertools
from typing import Any

from nvshare.bench.history import CardHistory, Recorder
from nvshare.bench.mission import SCENARIOS, TURNS, Mission
from nvshare.gpu.profiles import load
from nvshare.model.run import ModelBackend

GIB = 1 << 30


def client(name: str, gpu: str, resident: int, host: int) -> dict[str, Any]:
    return {"id": name, "gpus": [{"uuid": gpu, "resident": resident, "host": host}]}


def status(running: list[str], *clients: dict[str, Any], capacity: int = 16) -> dict[str, Any]:
    return {"gpus": [{"uuid": "GPU-a", "capacity": capacity, "running": running}], "clients": list(clients)}


def test_times_count_from_the_begin_in_the_cards_own_seconds() -> None:
    recorder = Recorder()
    recorder.holds(95.0, "GPU-a", "x")
    recorder.leaves(102.0, "GPU-a", "x")
    recorder.holds(103.0, "GPU-a", "y")
    (card,) = recorder.cards(["GPU-a"], {"x": "one", "y": "other"}, 100.0, 104.0, speed=10.0, resolution=0.1)
    # THEN what began before is cut off, and who still holds it does so to the end
    assert [task.held for task in card.tasks] == [((0.0, 20.0),), ((30.0, 40.0),)]
    assert (card.seconds, card.resolution_s) == (40.0, 1.0)


def test_a_status_says_who_runs_where_memory_is_and_how_much_room_there_was() -> None:
    recorder = Recorder()
    recorder.looked(0.0, status(["x"], client("x", "GPU-a", 9, 0), client("y", "GPU-a", 1, 8)))
    recorder.looked(1.0, status(["y"], client("x", "GPU-a", 1, 8), client("y", "GPU-a", 9, 0), capacity=12))
    recorder.looked(2.0, status(["y"], client("y", "GPU-a", 9, 0)))
    (card,) = recorder.cards(["GPU-a"], {"x": "one", "y": "other"}, 0.0, 3.0)
    assert card.capacity == 12
    assert [task.held for task in card.tasks] == [((0.0, 1.0),), ((1.0, 3.0),)]
    # AND one that is no longer there has nothing
    assert card.tasks[0].memory == ((0.0, 9, 0), (1.0, 1, 8), (2.0, 0, 0))
    assert card.tasks[1].memory == ((0.0, 1, 8), (1.0, 9, 0))


def test_strangers_and_unused_cards_are_left_out_and_the_others_keep_their_numbers() -> None:
    recorder = Recorder()
    recorder.holds(0.0, "GPU-b", "x")
    recorder.holds(0.0, "GPU-b", "stranger")
    (card,) = recorder.cards(["GPU-a", "GPU-b"], {"x": "one"}, 0.0, 1.0)
    assert (card.gpu, card.index, [task.task for task in card.tasks]) == ("GPU-b", 1, ["one"])


def test_nothing_happened_when_nobody_ran() -> None:
    assert Recorder().cards(["GPU-a"], {"x": "one"}, 5.0, 5.0) == ()


def test_many_changes_are_thinned_at_the_same_moments_for_all() -> None:
    # GIVEN two tasks that change places chunk by chunk, one right after the other
    recorder = Recorder()
    for step in range(10_000):
        recorder.has(step / 10_000, "GPU-a", "x", step, 10_000 - step)
        recorder.has(step / 10_000 + 1e-6, "GPU-a", "y", 10_000 - step, step)
    (card,) = recorder.cards(["GPU-a"], {"x": "one", "y": "other"}, 0.0, 1.0)
    one, other = card.tasks
    # THEN few are kept, and at no moment both are on the card
    assert 100 <= len(one.memory) <= 202
    sizes = {at: resident for at, resident, _ in one.memory}
    assert all(abs(sizes.get(at, 0) + resident - 10_000) <= 1 for at, resident, _ in other.memory if at in sizes)
    assert len(sizes.keys() & {at for at, _, _ in other.memory}) > 100


def held_at_once(card: CardHistory) -> bool:
    spans = sorted(span for task in card.tasks for span in task.held)
    return any(first[1] > second[0] for first, second in itertools.pairwise(spans))


def test_the_model_tells_who_had_the_card_and_where_memory_was() -> None:
    # GIVEN two tasks that do not fit together on each card
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == "2 auto")
    row = Mission(ModelBackend(2, load("T4")), {TURNS: 0.2}).run(scenario)
    assert [card.index for card in row.timeline] == [0, 1]
    for card in row.timeline:
        # THEN one has the card at a time, both have had it, and the switches are where turns meet
        assert not held_at_once(card)
        assert all(task.held for task in card.tasks)
        assert card.resolution_s == 0.0
        assert card.seconds <= row.duration_s + 0.001
        # AND memory is within the card at all times, and elsewhere when it is not there
        for task in card.tasks:
            assert all(resident <= card.capacity for _, resident, _ in task.memory)
            assert any(host > 8 * GIB for _, _, host in task.memory)
    turns = sum(len(task.held) for card in row.timeline for task in card.tasks)
    assert turns >= row.switches


def test_tasks_that_fit_hold_the_card_together_all_the_time() -> None:
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == "4")
    row = Mission(ModelBackend(2, load("T4")), {"add-small": 0.02}).run(scenario)
    for card in row.timeline:
        assert [task.held for task in card.tasks] == [((0.0, card.seconds),)] * 2
        assert all(host == 0 for task in card.tasks for _, _, host in task.memory)
