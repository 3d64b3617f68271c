"""The Triton kernel of ``worker.py``, in a file of its own because Triton reads its source."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_up(piece, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(piece + at, tl.load(piece + at) + 1)
