"""Container images without a registry or a builder: this machine's Python, our package, what both need.

The archive is an OCI image layout; ``ctr images import`` takes it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUSYBOX = Path("/bin/busybox")
PAUSE = "localhost/pause:local"
IMAGE = "localhost/nvshare:local"

_LIBRARIES = "usr/lib"
_PYTHON = "usr/local"
_UNUSED_STDLIB = {"test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "pydoc_data"}
_ELF = b"\x7fELF"
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Image:
    """Names that it is known by, its only layer, and what it runs when nothing else is said."""

    names: tuple[str, ...]
    layer: bytes
    command: tuple[str, ...]


class Layer:
    """A file system being put together; each path once."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._bytes, mode="w", format=tarfile.GNU_FORMAT)
        self._seen: set[str] = set()

    def directory(self, path: str, mode: int = 0o755) -> None:
        if path and path not in self._seen:
            self.directory(os.path.dirname(path))
            self._seen.add(path)
            info = tarfile.TarInfo(path)
            info.type, info.mode = tarfile.DIRTYPE, mode
            self._tar.addfile(info)

    def file(self, path: str, content: bytes, mode: int = 0o644, modified: float = 0) -> None:
        if path in self._seen:
            return
        self.directory(os.path.dirname(path))
        self._seen.add(path)
        info = tarfile.TarInfo(path)
        info.size, info.mode, info.mtime = len(content), mode, int(modified)
        self._tar.addfile(info, io.BytesIO(content))

    def copy(self, source: Path, path: str) -> None:
        # The time goes with it: compiled Python is believed only when it fits that of its source.
        status = source.stat()
        self.file(path, source.read_bytes(), 0o755 if status.st_mode & 0o100 else 0o644, status.st_mtime)

    def link(self, path: str, target: str) -> None:
        if path in self._seen:
            return
        self.directory(os.path.dirname(path))
        self._seen.add(path)
        info = tarfile.TarInfo(path)
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        self._tar.addfile(info)

    def finish(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()


def pause_image() -> Image:
    """What holds a pod's namespaces: a program that sleeps."""
    layer = Layer()
    layer.copy(BUSYBOX, "bin/busybox")
    return Image((PAUSE,), layer.finish(), ("/bin/busybox", "sleep", "2147483647"))


def nvshare_image() -> Image:
    """Our programs, a Python and a shell; the image of every pod of the tests."""
    layer = Layer()
    for path, mode in (("tmp", 0o1777), ("var/lib", 0o755), ("var/run", 0o755), ("proc", 0o755), ("sys", 0o755)):
        layer.directory(path, mode)
    layer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    layer.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    layer.copy(BUSYBOX, "bin/busybox")
    for tool in subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split():
        layer.link(f"bin/{tool}", "busybox")
    with_code = [*_add_python(layer), *_add_packages(layer), *_add_nvshare(layer)]
    _add_libraries(layer, with_code)
    return Image((IMAGE,), layer.finish(), ("python3",))


def _add_python(layer: Layer) -> Iterator[Path]:
    program = Path(sys.executable).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    layer.copy(program, f"{_PYTHON}/bin/{version}")
    for name in ("python3", "python"):
        layer.link(f"{_PYTHON}/bin/{name}", version)
    layer.link(f"{_PYTHON}/lib/{version}/dist-packages", "site-packages")  # where Debian's Python looks
    yield program
    stdlib = Path(sysconfig.get_path("stdlib"))
    for source in _files(stdlib):
        inside = source.relative_to(stdlib)
        if inside.parts[0] not in _UNUSED_STDLIB and not inside.parts[0].startswith("config-"):
            layer.copy(source, f"{_PYTHON}/lib/{version}/{inside}")
            yield source


def _add_packages(layer: Layer) -> Iterator[Path]:
    site = f"{_PYTHON}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for name in sorted(_needed("nvshare", {"kube"}) - {"nvshare"}):
        for entry in importlib.metadata.distribution(name).files or ():
            source = Path(str(entry.locate()))
            if ".." not in entry.parts and source.is_file():
                layer.copy(source, f"{site}/{entry}")
                yield source


def _needed(name: str, extras: set[str]) -> set[str]:
    """The installed distributions that one needs, itself included."""
    found: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        name, extras = waiting.pop()
        found.add(name)
        for requirement in importlib.metadata.distribution(name).requires or ():
            match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", requirement)
            assert match is not None, requirement
            condition = requirement.partition(";")[2]
            other, its_extras = match[1].lower(), set((match[2] or "").split(",")) - {""}
            of_extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", condition)
            if of_extra is not None and of_extra[1] not in extras:
                continue
            if other not in found and _is_installed(other):
                waiting.append((other, its_extras))
    return found


def _is_installed(name: str) -> bool:
    """A requirement of another platform or Python is not here, and not needed."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _add_nvshare(layer: Layer) -> Iterator[Path]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    package = f"{_PYTHON}/lib/{version}/site-packages/nvshare"
    for source in _files(ROOT / "src" / "nvshare"):
        layer.copy(source, f"{package}/{source.relative_to(ROOT / 'src' / 'nvshare')}")
    native = ROOT / "build" / "native"
    for library in (native / "libnvshare.so", *sorted((native / "sim").glob("*.so*"))):
        layer.copy(library, f"{package}/_native/{library.relative_to(native)}")
        yield library
    for script in importlib.metadata.distribution("nvshare").entry_points:
        module, _, function = script.value.partition(":")
        text = f"#!/usr/local/bin/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        layer.file(f"{_PYTHON}/bin/{script.name}", text.encode(), 0o755)


def _add_libraries(layer: Layer, programs: Iterable[Path]) -> None:
    """The shared libraries of these programs, and the loader where it is expected."""
    elf = [str(path) for path in programs if _is_elf(path)]
    listing = subprocess.run(["ldd", *elf], capture_output=True, text=True, check=False).stdout
    for name, path in re.findall(r"(?:(\S+) => )?(/\S+) \(0x", listing):
        library = Path(path)
        if name:
            layer.copy(library.resolve(), f"{_LIBRARIES}/{name}")
        else:
            layer.copy(library.resolve(), str(library).lstrip("/"))


def _is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == _ELF


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def write_archive(images: Iterable[Image], target: Path) -> None:
    """All of them in one archive."""
    manifests: list[dict[str, object]] = []
    with tarfile.open(target, "w") as archive:

        def put(path: str, content: bytes) -> None:
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))

        def blob(content: bytes, kind: str) -> dict[str, object]:
            digest = hashlib.sha256(content).hexdigest()
            put(f"blobs/sha256/{digest}", content)
            media_type = f"application/vnd.oci.image.{kind}"
            return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

        put("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        for image in images:
            layer = blob(image.layer, "layer.v1.tar")
            config = blob(_config(image, str(layer["digest"])), "config.v1+json")
            text = json.dumps({"schemaVersion": 2, "config": config, "layers": [layer]}).encode()
            manifest = blob(text, "manifest.v1+json")
            manifests += [{**manifest, "annotations": {"io.containerd.image.name": name}} for name in image.names]
        put("index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())


def _config(image: Image, layer_digest: str) -> bytes:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = {"Env": [f"PATH={_PATH}"], "Entrypoint": None, "Cmd": list(image.command)}
    file_system = {"type": "layers", "diff_ids": [layer_digest]}
    return json.dumps({"architecture": machine, "os": "linux", "config": config, "rootfs": file_system}).encode()
