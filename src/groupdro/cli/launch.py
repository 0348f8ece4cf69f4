"""`groupdro launch`."""

import click

__all__ = ["launch"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--workers", default=1, show_default=True, help="Processes on this node.")
@click.option("--nodes", default="1", show_default=True, help="Nodes that take part, or least:most.")
@click.option("--rendezvous", default="127.0.0.1:0", show_default=True, help="host:port where nodes meet.")
@click.option("--address", default=None, help="Address of this node for the others.")
@click.option("--interface", default=None, help="Network interface for the numbers.")
@click.option("--job", default=None, help="Name of the job, the same on all nodes.")
@click.option("--max-restarts", default=3, show_default=True, help="Restarts after a worker was lost.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(script: str, arguments: tuple[str, ...], **options: object) -> None:
    """Run SCRIPT with ARGUMENTS on several workers, by torchrun with settings that survive losses.

    Run it once on every node. The script opens its data, calls groupdro.distributed.communicator() and
    groupdro.distributed.shard(), and solves as it would alone; with a checkpoint directory that all nodes see, it
    resumes where it was when a worker was lost. A script that raises an error of its own is not started again.
    """
    from groupdro.distributed.launch import launch as start

    try:
        start(script, arguments, **options)  # type: ignore[arg-type]
    except (ValueError, ImportError, NotImplementedError) as error:
        raise click.ClickException(str(error)) from None
