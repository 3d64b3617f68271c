"""What a result says of the machine that it was made on."""

from __future__ import annotations

import pytest

from nvshare import __version__
from nvshare.bench import machine
from nvshare.bench.machine import conditions, source_of_cards
from nvshare.gpu.cards import Card, NoCards


class Nvml:
    """One H200."""

    def release(self) -> tuple[str, str]:
        return "580.159.04", "13.0"

    def answering(self) -> list[Card]:
        return [Card("GPU-1", "NVIDIA H200", 143771 << 20)]

    def close(self) -> None: ...


def test_a_result_of_real_cards_names_them_their_driver_and_its_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "NvmlCards", Nvml)
    told = conditions("gpu", {"machine": {"node": "1 x H200"}, "versions": {"torch": "2.11"}, "rows": [1]})
    assert told["machine"]["gpus"] == ["NVIDIA H200, 143771 MiB"]
    assert (told["machine"]["driver"], told["machine"]["cuda"]) == ("580.159.04", "13.0")
    assert told["machine"]["node"] == "1 x H200"
    assert (told["versions"]["nvshare"], told["versions"]["torch"]) == (__version__, "2.11")
    assert (told["source"], told["simulated"], told["rows"]) == ("gpu", False, [1])


@pytest.mark.parametrize(
    ("source", "simulated"), [("model", True), ("simulated", True), ("kubernetes", None), ("logs", None)]
)
def test_other_results_do_not_name_cards_that_they_never_saw(
    source: str, simulated: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "NvmlCards", lambda: pytest.fail("it looked at the cards"))
    told = conditions(source)
    assert (told["source"], told["simulated"]) == (source, simulated)
    assert "driver" not in told["machine"]
    assert "gpus" not in told["machine"]


def test_cards_that_went_meanwhile_do_not_cost_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoCards("gone")

    monkeypatch.setattr(machine, "NvmlCards", none)
    assert "driver" not in conditions("gpu")["machine"]


def test_cards_of_a_simulated_node_are_never_called_real() -> None:
    assert source_of_cards({"NVSHARE_SIM_NODE": "/some/node"}) == "simulated"
    assert source_of_cards() == "gpu"
