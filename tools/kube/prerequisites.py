"""What a cluster needs of this machine: found, built or installed, or named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# Programs by the Debian package that has them.
_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/bin/busybox": "busybox-static",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "openssl": "openssl",
}


def binaries() -> Path:
    """Where the programs built from source are, or will be."""
    version = next(
        line.split()[1] for line in (_HERE / "go.mod").read_text().splitlines() if "k8s.io/kubernetes v" in line
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "nvshare" / "kube" / version


def missing() -> str | None:
    """Gets what can be got; None when everything is there, else what is not and what would help."""
    if os.geteuid() != 0:
        return "it needs root, for namespaces, control groups and containers"
    if subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False).returncode != 0:
        return "this machine allows no mount and network namespaces (unshare --mount --net)"
    return _missing_packages() or _missing_binaries()


def _missing_packages() -> str | None:
    wanted = _not_found()
    if wanted and shutil.which("apt-get"):
        # With this run level packages start no services.
        environment = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *sorted(set(wanted.values()))]
        for command in (install, ["apt-get", "update", "-qq"], install):
            if _not_found():
                subprocess.run(command, env=environment, capture_output=True, check=False)
    left = _not_found()
    if left:
        return f"{', '.join(left)} not found; on Debian: apt-get install {' '.join(sorted(set(left.values())))}"
    return None


def _not_found() -> dict[str, str]:
    return {program: package for program, package in _PACKAGES.items() if not shutil.which(program)}


def _missing_binaries() -> str | None:
    if (binaries() / "complete").exists():
        return None
    if not shutil.which("go"):
        return "Kubernetes is built from source once, which needs Go 1.24 or later (https://go.dev/dl)"
    built = subprocess.run([str(_HERE / "build.sh")], stdout=subprocess.DEVNULL, check=False)
    return None if built.returncode == 0 else "Kubernetes could not be built; run tools/kube/build.sh to see why"
