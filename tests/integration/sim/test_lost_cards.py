"""A card that falls off the bus, as who looks at cards sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvshare.gpu import sim
from tests.support.processes import Program

WATCH = """
from nvshare.gpu.cards import CardWatch
watch = CardWatch()
def show():
    print(*(int(answers) for _, answers in watch.look()), flush=True)
show()
for _ in sys.stdin:
    show()
"""


def test_a_watch_sees_a_card_go_and_come_back(
    make_node: Callable[..., sim.SimNode], start: Callable[..., Program]
) -> None:
    node = make_node("2xT4")
    first = sorted(node.uuids)[0]
    program = start(node, WATCH)
    assert program.line() == "1 1"
    node.lose(first)
    program.tell()
    assert program.line() == "0 1"
    program.tell()
    assert program.line() == "0 1"
    node.lose(first, lost=False)
    program.tell()
    assert program.line() == "1 1"


def test_the_other_cards_are_found_when_one_is_lost_from_the_beginning(
    make_node: Callable[..., sim.SimNode], run: Callable[..., str]
) -> None:
    node = make_node("2xT4")
    node.lose(node.uuids[0])
    found = run(node, "from nvshare.gpu.cards import NvmlCards\nprint(*(card.uuid for card in NvmlCards().cards()))")
    assert found.split() == [node.uuids[1]]


def test_a_node_of_lost_cards_has_none(make_node: Callable[..., sim.SimNode], run: Callable[..., str]) -> None:
    node = make_node("1xT4")
    node.lose(node.uuids[0])
    said = run(node, "from nvshare.gpu.cards import CardWatch\nwatch = CardWatch()\nprint(watch.look(), watch.problem)")
    assert said.strip() == "[] the NVIDIA driver lists no GPU that answers"


def test_a_card_that_the_node_does_not_have_cannot_be_lost(make_node: Callable[..., sim.SimNode]) -> None:
    with pytest.raises(sim.SimError, match="has no card GPU-x"):
        make_node("1xT4").lose("GPU-x")
