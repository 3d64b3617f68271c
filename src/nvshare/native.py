"""Where the native libraries are: beside the package in a wheel, under ``build/native`` in a source tree.

``python -m nvshare.native DIRECTORY`` puts ``libnvshare.so`` there for the containers of a node.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from nvshare import config

_PACKAGE = Path(__file__).resolve().parent
_SOURCE_TREE = _PACKAGE.parent.parent


class NativeMissing(Exception):
    """The native part was not built, or cannot be loaded from where it is."""


def _directory() -> Path:
    candidates = [_PACKAGE / "_native"]
    if (_SOURCE_TREE / "CMakeLists.txt").exists():
        candidates.insert(0, _SOURCE_TREE / "build" / "native")
    for candidate in candidates:
        if (candidate / "libnvshare.so").exists():
            return candidate
    raise NativeMissing(f"libnvshare.so is not built (looked in {', '.join(map(str, candidates))}); run: make native")


def built_interposer() -> Path:
    """``libnvshare.so`` under whatever path it has; what may be preloaded is ``interposer``."""
    return _directory() / "libnvshare.so"


def interposer() -> Path:
    """``libnvshare.so``, to be preloaded into applications: under a path that the loader takes as one."""
    return _under_safe_name(built_interposer(), "LD_PRELOAD", " :$")


def client_machine() -> Path:
    """``libnvshare_client.so``: what the interposer decides, for the model and for tests."""
    return _directory() / "libnvshare_client.so"


def simulated_driver() -> Path:
    """The directory of the simulated ``libcuda.so.1`` and ``libnvidia-ml.so.1``."""
    return _under_safe_name(_directory() / "sim", "LD_LIBRARY_PATH", ":;$")


def deployment_file(folder: str, name: str) -> Path:
    """A file of ``deploy/``, which a wheel has beside the package."""
    candidates = [_PACKAGE / "_deploy" / name, _SOURCE_TREE / "deploy" / folder / name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise NativeMissing(f"{name} is missing (looked in {', '.join(map(str, candidates))}); install nvshare again")


def _under_safe_name(path: Path, variable: str, special: str) -> Path:
    """The path itself, or a link to it in the runtime directory when the loader would misread the path.

    The loader does not fail then: it runs the program without us, so that it must never come to that.
    """
    if not set(special) & set(str(path)):
        return path
    name = f"{path.stem}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}{path.suffix}"
    link = config.own_runtime_directory() / name
    if set(special) & set(str(link)):
        raise NativeMissing(
            f"{path} cannot be named in {variable} (no space, colon, semicolon or $), and neither can {link}: "
            "set XDG_RUNTIME_DIR to a plain path"
        )
    with config.within_runtime(link.parent):
        if not link.is_symlink() or os.readlink(link) != str(path):
            temporary = link.with_name(f"{name}.{os.getpid()}")
            temporary.symlink_to(path)
            temporary.replace(link)
    return link


def install(directory: Path) -> Path:
    """Put ``libnvshare.so`` into a directory, whole at every moment: who has the old one mapped keeps it."""
    library = directory / "libnvshare.so"
    temporary = library.with_name(f".{library.name}.{os.getpid()}")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as target, (_directory() / library.name).open("rb") as source:
            shutil.copyfileobj(source, target)
            os.fchmod(target.fileno(), 0o755)
            os.fsync(target.fileno())
        temporary.replace(library)
    finally:
        temporary.unlink(missing_ok=True)
    return library


def _main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m nvshare.native DIRECTORY")
    try:
        print(f"installed {install(Path(sys.argv[1]))}")
    except (OSError, NativeMissing) as error:
        sys.exit(f"[NVSHARE][FATAL]: libnvshare.so cannot be installed in {sys.argv[1]}: {error}")


if __name__ == "__main__":
    _main()
