"""What docs/workstation.md promises: six notebooks on one card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

pytestmark = pytest.mark.simulated

HOLDER = Path(__file__).with_name("holder.py")
OUT_OF_MEMORY = {"did": "alloc", "error": "CUDA_ERROR_OUT_OF_MEMORY"}


def notebook(node: Node, *options: str) -> Program:
    """A kernel that is a run of its own."""
    return node.start("-m", "nvshare", "run", *options, "--", sys.executable, str(HOLDER), LD_PRELOAD="")


def test_six_notebooks_that_do_not_fit_all_work(node: Node) -> None:
    # GIVEN six kernels of 4 GB on a card of 14.6 GiB
    kernels = [node.holder() for _ in range(6)]
    for kernel in kernels:
        assert kernel.ask("alloc 4000") == {"did": "alloc"}
    # WHEN each runs a cell, twice THEN all of them work
    for _ in range(2):
        for kernel in kernels:
            assert kernel.ask("spin 1") == {"did": "spin"}
    # AND those that were idle have given up what the others needed
    away = [place["host"] for client in node.status()["clients"] for place in client["gpus"]]
    assert sum(size > 0 for size in away) >= 3


def test_a_notebook_that_is_a_run_has_its_own_quota_and_sees_itself(node: Node) -> None:
    first, second = notebook(node, "--mem", "4GiB", "--name", "notebook"), notebook(node, "--mem", "2GiB")
    assert first.ask("alloc 3000") == {"did": "alloc"}
    assert second.ask("alloc 3000") == OUT_OF_MEMORY
    assert second.ask("alloc 1000") == {"did": "alloc"}
    view = first.ask("smi")
    assert (view["total"], view["used"], list(view["processes"].values())) == (4096, 3000, [3000])
    for kernel in (first, second):
        assert kernel.result()[0] == 0
