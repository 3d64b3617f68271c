"""Debian packages taken apart below a directory: the C library of another release or architecture, without root."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

MIRRORS = ("http://deb.debian.org/debian", "http://archive.debian.org/debian")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class PackagesMissing(Exception):
    """The packages cannot be had on this machine."""


def unpacked(directory: Path, release: str, architecture: str, *names: str) -> Path:
    """A directory with the files of the packages; kept for the next time."""
    root = directory.resolve() / "-".join((release, architecture, *names))
    if root.is_dir():
        return root
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and KEYRING.exists()):
        raise PackagesMissing("there is no apt-get, no dpkg-deb, or no keyring of Debian")
    fetched, unfinished = root.with_name(f"{root.name}.fetched"), root.with_name(f"{root.name}.unfinished")
    for rest in (fetched, unfinished):
        shutil.rmtree(rest, ignore_errors=True)
    try:
        _fetch(fetched, release, architecture, names)
        for package in fetched.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, unfinished], check=True)
        unfinished.rename(root)
    finally:
        shutil.rmtree(fetched, ignore_errors=True)
    return root


def _fetch(directory: Path, release: str, architecture: str, names: tuple[str, ...]) -> None:
    """Download packages with an apt that knows this one release and architecture."""
    for part in (directory / "lists" / "partial", directory / "none"):
        part.mkdir(parents=True)
    sources, status = directory / "sources.list", directory / "status"
    status.touch()
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": directory / "none",
        "Dir::State": directory,
        "Dir::State::status": status,
        "Dir::Cache": directory,
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::Languages": "none",
        "APT::Update::Error-Mode": "any",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    said = ""
    for mirror in MIRRORS:
        sources.write_text(f"deb [signed-by={KEYRING}] {mirror} {release} main\n")
        for command in (["update"], ["download", *names]):
            done = subprocess.run([*apt, *command], cwd=directory, check=False, capture_output=True, text=True)
            said = done.stderr
            if done.returncode != 0:
                break
        else:
            return
    raise PackagesMissing(
        f"{', '.join(names)} of Debian {release} for {architecture} cannot be downloaded: {said.strip()}"
    )
