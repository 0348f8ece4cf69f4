"""`groupdro launch`."""

import click

__all__ = ["launch"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--workers", default=1, show_default=True, help="Processes on this node.")
@click.option("--nodes", default="1", show_default=True, help="Number of nodes, or least:most.")
@click.option("--rendezvous", default="127.0.0.1:0", show_default=True, help="host:port where all nodes meet.")
@click.option("--address", default=None, help="Address at which other nodes reach this one.")
@click.option("--interface", default=None, help="Network interface for messages.")
@click.option("--job", default=None, help="Name of the job, the same on all nodes.")
@click.option("--max-restarts", default=3, show_default=True, help="Number of restarts after the loss of a worker.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(script: str, arguments: tuple[str, ...], **options: object) -> None:
    """Run SCRIPT with ARGUMENTS on several workers, using torchrun with fault-tolerant defaults.

    Run it once on every node. The script opens its data, calls groupdro.distributed.communicator() and
    groupdro.distributed.shard(), and solves as it would alone. With a checkpoint directory visible to all nodes, it
    resumes after the loss of a worker. A script that raises an error of its own is not restarted.
    """
    from groupdro.distributed.launch import launch as start

    try:
        start(script, arguments, **options)  # type: ignore[arg-type]
    except (ValueError, ImportError, NotImplementedError) as error:
        raise click.ClickException(str(error)) from None
