#!/usr/bin/env python3
"""The stress test of GPU allocation, from a plain checkout: the same as ``nvshare stress``.

Needs Python 3.10, click, rich and nvidia-ml-py; no framework. Where ``make`` has set up ``.venv``, that one is used.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
NEEDED = {"click": "click", "rich": "rich", "pynvml": "nvidia-ml-py"}
USAGE = 2


def main() -> None:
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    own = ROOT / ".venv" / "bin" / "python"
    if missing and own.exists() and Path(sys.prefix) != ROOT / ".venv":
        os.execv(own, [str(own), *sys.argv])  # noqa: S606
    if missing:
        those = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        sys.exit(
            _fail(
                f"{those} {'is' if len(missing) == 1 else 'are'} missing: run make native .venv/.ready, then "
                f".venv/bin/python test_gpu_allocation.py, or pip install {' '.join(missing)}"
            )
        )
    if not (ROOT / "build" / "native" / "libnvshare.so").exists():
        _say("building the native part (make native)")
        if subprocess.run(["make", "-C", str(ROOT), "native"], stdout=subprocess.DEVNULL, check=False).returncode:
            sys.exit(_fail("make native failed; see above"))
    sys.path.insert(0, str(ROOT / "src"))
    from nvshare.cli.entry import stress

    stress("test_gpu_allocation.py")


def _say(text: str) -> None:
    print(f"[NVSHARE][INFO]: {text}", file=sys.stderr)


def _fail(text: str) -> int:
    print(f"[NVSHARE][FATAL]: {text}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    main()
