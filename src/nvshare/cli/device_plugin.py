"""``nvshare-device-plugin``: offers shares of the node's GPUs to Kubernetes."""

from __future__ import annotations

from pathlib import Path

import click

from nvshare import __version__, config, native
from nvshare.cli.options import SIZE, Finite, PlainCommand, Seconds, fail
from nvshare.gpu.cards import CardWatch

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command(cls=PlainCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--devices",
    type=click.IntRange(*config.VIRTUAL_DEVICES_BOUNDS),
    help="Devices for each GPU: how many containers may share it. Default 10 (NVSHARE_VIRTUAL_DEVICES).",
)
@click.option(
    "--placement",
    type=click.Choice(config.PLACEMENTS),
    help="Prefer the least loaded GPU, or the fullest. Default spread (NVSHARE_PLACEMENT).",
)
@click.option(
    "--gpumem/--no-gpumem", "with_memory", default=True, help="Offer nvshare.com/gpumem too, in MiB. Default: yes."
)
@click.option(
    "--memory-ratio",
    type=Finite(*config.MEMORY_OVERSUB_BOUNDS),
    help="How much of a GPU's memory may be promised, in times of what it has. "
    "Default 1 (NVSHARE_GPU_MEMORY_OVERSUB_RATIO).",
)
@click.option("--card-memory", type=SIZE, help="What a GPU has at most, as the scheduler's (NVSHARE_CARD_MEMORY).")
@click.option(
    "--device-list-strategy",
    "strategy",
    type=click.Choice(["envvar", "cdi"]),
    default="envvar",
    help="How the container runtime is told the GPUs: NVIDIA_VISIBLE_DEVICES, or CDI names. Default envvar.",
)
@click.option(
    "--kubelet-dir", type=_DIRECTORY, default="/var/lib/kubelet", help="The kubelet's. Default /var/lib/kubelet."
)
@click.option(
    "--library-dir",
    type=_DIRECTORY,
    default="/var/lib/nvshare/lib",
    help="On the host, with libnvshare.so. Default /var/lib/nvshare/lib.",
)
@click.option(
    "--socket-dir",
    type=_DIRECTORY,
    default="/var/run/nvshare",
    help="On the host, with the scheduler's socket. Default /var/run/nvshare.",
)
@click.option(
    "--health-interval",
    type=Seconds(min=0.1, max=3600),
    default=2.0,
    metavar="SECONDS",
    help="How often the GPUs are looked at. Default 2.",
)
@click.option("--simulated", type=_DIRECTORY, metavar="NODE_DIR", help="Give containers this simulated node.")
@click.option(
    "--simulated-driver",
    type=_DIRECTORY,
    help="Host directory of the simulated driver. Default: where this program has it.",
)
@click.option("--debug", is_flag=True, help="Log every preference (NVSHARE_DEBUG).")
@click.version_option(__version__, prog_name="nvshare-device-plugin")
def main(
    devices: int | None,
    placement: str | None,
    with_memory: bool,
    memory_ratio: float | None,
    card_memory: int | None,
    strategy: str,
    kubelet_dir: Path,
    library_dir: Path,
    socket_dir: Path,
    health_interval: float,
    simulated: Path | None,
    simulated_driver: Path | None,
    debug: bool,
) -> None:
    """Offers shares of this node's GPUs to Kubernetes, as nvshare.com/gpu. One per node.

    \b
    nvshare-device-plugin                              ten containers to a GPU
    nvshare-device-plugin --devices 4 --placement pack
    nvshare-device-plugin --memory-ratio 1.5           1.5 times a GPU's memory
    nvshare-device-plugin --device-list-strategy cdi   for runtimes that take CDI

    Stop it with Ctrl-C or SIGTERM: running containers keep what they have. Ends with 2 when it cannot start.
    """
    environment = config.Environment()
    settings = config.plugin_config(
        environment,
        devices_per_gpu=devices,
        placement=placement,
        ratio=memory_ratio,
        card_memory=card_memory,
        debug=debug,
    )
    log = config.configure_logging(settings.debug)
    for warning in environment.warnings:
        log.warning("%s", warning)
    try:
        from nvshare.kube.plugin.desk import Terms
        from nvshare.kube.plugin.endpoint import Occupied
        from nvshare.kube.plugin.response import Places
        from nvshare.kube.plugin.run import Kubelet, Options, serve
        from nvshare.kube.plugin.simulated import SimulatedNode
    except ImportError as error:
        fail(f"{error.name or error} is missing; the Kubernetes part needs: pip install 'nvshare[kube]'", 2)
    extra = None
    if simulated is not None:
        extra = SimulatedNode(simulated.absolute(), (simulated_driver or native.simulated_driver()).absolute())
    watch = CardWatch()
    try:
        serve(
            Options(
                settings,
                Terms(settings.placement, strategy, Places(library_dir.absolute(), socket_dir.absolute()), extra),
                Kubelet(kubelet_dir),
                socket_dir / config.SOCKET_NAME,
                with_memory,
                health_interval,
            ),
            watch,
        )
    except Occupied as error:
        fail(str(error), 2)
    finally:
        watch.close()


if __name__ == "__main__":
    main()
