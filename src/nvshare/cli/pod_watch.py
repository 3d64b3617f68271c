"""``nvshare-pod-watch``: live quotas of pods. Runs beside the scheduler, in its pod."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import click

from nvshare import __version__, config
from nvshare.cli.options import PlainCommand, fail
from nvshare.kube.pods.api import Access, Api
from nvshare.kube.pods.apply import Applier
from nvshare.kube.pods.complaints import Complaints
from nvshare.kube.pods.credentials import NoAccess, from_kubeconfig, in_cluster
from nvshare.kube.pods.store import Store
from nvshare.kube.pods.watch import PodWatch

_LOG = logging.getLogger("nvshare")
_NICENESS = 5  # the scheduler goes first


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--node", metavar="NAME", help="The node whose pods are watched (NODE_NAME).")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="How to reach the API server. Default: as the pod this runs in, else KUBECONFIG.",
)
@click.option("--socket", type=click.Path(path_type=Path), help="The scheduler's socket. Default: as the library does.")
@click.option("--debug", is_flag=True, help="Log more (NVSHARE_DEBUG).")
@click.version_option(__version__, prog_name="nvshare-pod-watch")
def main(node: str | None, kubeconfig: Path | None, socket: Path | None, debug: bool) -> None:
    """Watches the pods of one node and gives the scheduler their quotas.

    \b
    nvshare.com/gpu-memory-limit: 4Gi   of each of its GPUs
    nvshare.com/gpu-core-limit: "60"    percent of a GPU's time, at most
    nvshare.com/gpu-core-request: "30"  percent of a GPU's time, guaranteed

    All may change while the pod runs. A value that cannot be used changes nothing and becomes an Event of the pod.
    """
    environment = config.Environment()
    config.configure_logging(debug or environment.get(config.DEBUG))
    place = config.cluster_place()
    node = node or place.node
    if not node:
        fail("which node? Use --node NAME, or set NODE_NAME (in a pod: from spec.nodeName)", 2)
    try:
        api = Api(_access(kubeconfig, place))
    except NoAccess as error:
        fail(str(error), 2)
    os.nice(_NICENESS)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # nothing is left to do: the scheduler keeps what it knows
    complaints = Complaints(api, node)
    applier = Applier(socket or config.find_socket())
    store = Store(applier.wake, complaints.complain)
    applier.lacks_room = store.lacks_room
    _LOG.info("nvshare-pod-watch: pods of node %s", node)
    for work in (PodWatch(api, node, store).run, complaints.run):
        threading.Thread(target=_vital, args=(work,), daemon=True).start()
    applier.run(store.snapshot)


def _access(kubeconfig: Path | None, place: config.ClusterPlace) -> Access:
    if kubeconfig is None and place.service is not None:
        return in_cluster(*place.service)
    kubeconfig = kubeconfig or place.kubeconfig
    if kubeconfig is None:
        raise NoAccess("no API server: run this in a pod, or use --kubeconfig FILE")
    return from_kubeconfig(kubeconfig)


def _vital(work: Callable[[], None]) -> None:
    """Whoever started us starts us again when a part of us fails."""
    try:
        work()
    except BaseException:
        _LOG.exception("internal error, ending")
        os._exit(1)


if __name__ == "__main__":
    main()
