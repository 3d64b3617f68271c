"""Makes the helpers beside these tests importable; ``tests/soak/core_sequences.py`` uses the same ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
