"""A whole Kubernetes cluster on this machine, for tests: etcd, API server, controllers, scheduler, kubelet, containerd.

    python tools/kube/cluster.py up             starts it and says how to use it
    python tools/kube/cluster.py shell          a shell inside, with kubectl and helm
    python tools/kube/cluster.py run COMMAND    up, the command inside, down
    python tools/kube/cluster.py down           ends all of it, also what a crash left behind

It lives in a mount and a network namespace of its own, where /var/lib, /var/log and /run belong to it, in one control
group, and in one directory. Nothing else of the machine is touched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import cgroups
import image
from prerequisites import binaries, missing
from settings import ADDRESS, API_SERVICE, ASIDE, BRIDGE, NODE, Settings

from nvshare.procfs import start_time

DIRECTORY = Path("/tmp/nvshare-kube")
VARIABLE = "NVSHARE_KUBE"  # tells the tests where they run: "real", or why there is no cluster

_OWNER = "owner"  # the process that the cluster ends with, beside the programs of it
_KEPT_LOGS = image.ROOT / "build" / "kube-logs"  # of the last run, after its end
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0
# The kubelet wants these of the machine. It gets files of its own that already say so, and changes nothing.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_OWN_PLACES = {"lib": "/var/lib", "log": "/var/log", "run": "/run"}


class ClusterError(Exception):
    """It did not come up, or does not do what was asked; the text says which log to read."""


class Cluster:
    """The cluster of one directory. An object may be made at any time, by any process, to look at it or end it."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.directory = directory
        self.settings = Settings(directory, binaries(), directory.name)

    # ---- the whole

    def up(self, kept: bool = False) -> None:
        """From nothing to a node that is ready and has our image; ``kept``: it shall outlive this process.

        What a crash left of an earlier one is removed first.
        """
        self.refuse_a_second()
        self.down()
        self.directory.mkdir(mode=0o700)
        for name in ("pids", "logs", "sysctl", "etcd", *_OWN_PLACES):
            (self.directory / name).mkdir()
        if not kept:
            (self.directory / "pids" / _OWNER).write_text(f"{os.getpid()} {start_time(os.getpid())}")
        self.settings.write(image.PAUSE)
        self.settings.make_key()
        cgroups.make(self.settings.cgroup)
        self._make_namespaces()
        for name in ("etcd", "containerd", "kube-apiserver"):
            self.start(name)
        self._import_images()
        self._wait_for_api(self.settings.kubeconfig)
        for name in ("kube-controller-manager", "kube-scheduler", "kubelet"):
            self.start(name)
        self._wait_for("the node", self._is_ready)
        self._wait_for("service accounts", lambda: "default" in self.kubectl("get", "sa", "default", check=False))

    def down(self) -> None:
        cgroups.remove(self.settings.cgroup)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def is_up(self) -> bool:
        return self._pid("namespaces") is not None

    # ---- one program of it

    def start(self, name: str, command: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        """One of the cluster's own programs, or any other: it ends with the cluster and writes to ``log(name)``."""
        argv = list(command or self.settings.commands()[name])
        self._spawn(name, self._inside(argv), {**self.environment(), **(env or {})})

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """And wait until it has ended."""
        pid = self._pid(name)
        if pid is None:
            return
        os.kill(pid, how)
        self._wait_for(f"the end of {name}", lambda: self._pid(name) is None, _STOP_SECONDS)
        (self.directory / "pids" / name).unlink()

    def restart_kubelet(self) -> None:
        """Returns when the new one answers."""
        self.stop("kubelet")
        self.start("kubelet")
        self._wait_for("the kubelet", self._kubelet_answers)

    def stop_api(self) -> None:
        """The API server that the cluster knows goes away. Another one, of which only ``aside_kubeconfig`` knows,
        takes changes meanwhile."""
        self.start(ASIDE)
        self._wait_for_api(self.settings.aside_kubeconfig)
        self.stop("kube-apiserver", signal.SIGKILL)

    def start_api(self) -> None:
        self.start("kube-apiserver")
        self._wait_for_api(self.settings.kubeconfig)
        self.stop(ASIDE)
        for name in ("kube-controller-manager", "kube-scheduler"):  # they would look for it again after up to a minute
            self.stop(name)
            self.start(name)

    def log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    # ---- from inside

    def run(self, argv: Sequence[str], capture: bool = False, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command in the cluster's namespaces."""
        return subprocess.run(
            self._inside(argv), text=True, env=self.environment(), capture_output=capture, check=check
        )

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        done = self.run([str(self.settings.binaries / "kubectl"), *arguments], capture=True, check=False)
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return str(done.stdout)

    def environment(self) -> dict[str, str]:
        path = f"{self.settings.binaries}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        kept = {name: os.environ[name] for name in ("HOME", "TERM", "NVSHARE_SOAK") if name in os.environ}
        return {"PATH": path, "KUBECONFIG": str(self.settings.kubeconfig), VARIABLE: "real", **kept}

    # ---- how

    def _inside(self, argv: Sequence[str]) -> list[str]:
        pid = self._pid("namespaces")
        if pid is None:
            raise ClusterError("no cluster is up; start it with: python tools/kube/cluster.py up")
        enter = ["nsenter", f"--target={pid}", "--mount", "--net", f"--wd={Path.cwd()}", "--"]
        return [*self._joining(), *enter, *argv]

    def _spawn(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """A program that outlives this process."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawnp(argv[0], list(argv), env, file_actions=actions, setsid=True)
        (self.directory / "pids" / name).write_text(f"{pid} {start_time(pid)}")
        return pid

    def _joining(self) -> list[str]:
        """A command that makes itself a member of the cluster's control groups and becomes what follows."""
        files = [str(path) for path in cgroups.make(self.settings.cgroup)]
        return ["sh", "-c", f'for file in {" ".join(files)}; do echo $$ > $file; done; exec "$@"', "sh"]

    def _make_namespaces(self) -> None:
        unshare = ["unshare", "--mount", "--net", "--propagation=private", "sleep", "infinity"]
        pid = self._spawn("namespaces", [*self._joining(), *unshare], self.environment())
        own = os.stat("/proc/self/ns/net").st_ino
        self._wait_for("namespaces", lambda: os.stat(f"/proc/{pid}/ns/net").st_ino != own)
        steps = ["mount --make-rshared /", f"mount -t tmpfs tmpfs {self.directory}/etcd"]
        for place, target in _OWN_PLACES.items():
            steps.append(f"mount --bind {self.directory}/{place} {target}")
        for name, value in _KERNEL_SETTINGS.items():
            file = self.directory / "sysctl" / name.replace("/", ".")
            file.write_text(value)
            steps.append(f"mount --bind {file} /proc/sys/{name}")
        steps += [
            "ip link set lo up",
            f"ip link add {BRIDGE} type bridge",
            # Else it takes that of a port, another one whenever pods come and go, and connections stall for seconds.
            f"ip link set {BRIDGE} address 0a:58:0a:58:00:01",
            f"ip address add {ADDRESS}/16 dev {BRIDGE}",
            f"ip address add {API_SERVICE}/32 dev {BRIDGE}",
            f"ip link set {BRIDGE} up",
            f"ip route add default dev {BRIDGE}",
        ]
        self.run(["sh", "-ec", "\n".join(steps)])

    def refuse_a_second(self) -> None:
        """``ClusterError`` when there is one that is nobody's to remove."""
        owner = self._pid(_OWNER)
        if owner is not None and owner != os.getpid():
            raise ClusterError(f"process {owner} has a cluster in {self.directory}: wait for it, or name another place")
        if self.is_up and not (self.directory / "pids" / _OWNER).exists():
            raise ClusterError(f"a cluster is up in {self.directory}; end it with: python tools/kube/cluster.py down")

    def _import_images(self) -> None:
        archive = self.directory / "images.tar"
        image.write_archive([image.pause_image(), image.nvshare_image()], archive)
        ctr = ["ctr", f"--address={self.settings.containerd_socket}", "--namespace=k8s.io"]
        self._wait_for("containerd", lambda: self.run([*ctr, "version"], True, False).returncode == 0)
        self.run([*ctr, "images", "import", str(archive)], capture=True)
        archive.unlink()

    def _wait_for_api(self, kubeconfig: Path) -> None:
        question = (f"--kubeconfig={kubeconfig}", "get", "--raw", "/readyz")
        self._wait_for("an API server", lambda: self.kubectl(*question, check=False) == "ok")

    def _is_ready(self) -> bool:
        condition = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", NODE, "-o", f"jsonpath={condition}", check=False) == "True"

    def _kubelet_answers(self) -> bool:
        return self.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/healthz", check=False) == "ok"

    def _pid(self, name: str) -> int | None:
        """Of a program that runs; None when it has ended."""
        with contextlib.suppress(OSError, ValueError):
            pid, started = map(int, (self.directory / "pids" / name).read_text().split())
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # it may be ours
            if start_time(pid) == started:
                return pid
        return None

    def _wait_for(self, what: str, condition: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {seconds:.0f} s for {what} in vain; the logs are in {self.directory}/logs")
            time.sleep(0.2)


def _run(cluster: Cluster, command: Sequence[str]) -> int:
    """On a cluster; where there can be none the command is told so, and says what it did not do."""
    reason = missing()
    if reason is None:
        cluster.refuse_a_second()
        try:
            reason = _trouble_with(cluster)
            if reason is None:
                return cluster.run(command, check=False).returncode
        finally:
            shutil.rmtree(_KEPT_LOGS, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):  # it had not come so far
                shutil.copytree(cluster.directory / "logs", _KEPT_LOGS)
            cluster.down()
    print(f"no cluster: {reason}", file=sys.stderr)
    return subprocess.run(command, env={**os.environ, VARIABLE: f"missing: {reason}"}, check=False).returncode


def _trouble_with(cluster: Cluster) -> str | None:
    """Start it; why it does not on this machine, if it does not. Nothing of nvshare has a part in that."""
    try:
        cluster.up()
    except (ClusterError, OSError, subprocess.CalledProcessError) as error:
        return f"it does not start here ({error}); its logs are in {_KEPT_LOGS}"
    return None


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="its place and name; a second needs another")
    parser.add_argument("what", choices=["up", "down", "shell", "run"])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    cluster = Cluster(arguments.directory)
    if arguments.what == "run":
        return _run(cluster, arguments.command)
    if arguments.what == "shell":
        return cluster.run([os.environ.get("SHELL", "/bin/sh")], check=False).returncode
    if arguments.what == "down":
        cluster.down()
        return 0
    reason = missing()
    if reason is not None:
        print(f"no cluster: {reason}", file=sys.stderr)
        return 1
    cluster.up(kept=True)
    print("the cluster is up: python tools/kube/cluster.py shell")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"cluster: {error}")
