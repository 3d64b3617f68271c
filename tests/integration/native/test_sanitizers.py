"""The native tests, built and run under each sanitizer."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = sorted(path.stem for path in (ROOT / "tests" / "native").glob("test_*.c"))
OPTIONS = {
    "address,undefined": {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "thread": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
}


@pytest.fixture(scope="module", params=sorted(OPTIONS))
def build(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """One build directory per set of sanitizers that work together, kept between runs."""
    sanitizer: str = request.param
    directory = ROOT / "build" / "sanitized" / sanitizer.replace(",", "-")
    options = [f"-DNVSHARE_SANITIZE={sanitizer}", "-DNVSHARE_TESTS=ON"]
    configure: list[str | Path] = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", directory, *options]
    environment = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two of pytest's workers may come here at once
        build: list[str | Path] = ["cmake", "--build", directory]
        for command in (configure, build):
            subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return sanitizer, directory


@pytest.mark.sanitizer
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_native_test_is_clean_under_sanitizer(build: tuple[str, Path], program: str, tmp_path: Path) -> None:
    # GIVEN a native test program, built with the sanitizer, and no scheduler but the program's own
    sanitizer, directory = build
    environment = {**os.environ, **OPTIONS[sanitizer], "NVSHARE_SOCK": str(tmp_path / "none.sock")}
    # WHEN it runs
    result = subprocess.run(
        [directory / "tests" / program], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    # THEN it passes and the sanitizer has nothing to say
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
