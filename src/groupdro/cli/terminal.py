"""What the commands print: all of it passes through here."""

import click

from groupdro.utils.arguments import printable

__all__ = ["echo"]


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print lines of text, in which control characters are escaped.

    Names of groups, columns and files come from data, and a terminal would obey what is hidden in them. A name on a
    line should pass through `printable` of its own, which also escapes the ends of lines.

    Parameters
    ----------
    text : str
        The lines.
    err : bool
        Whether to print to stderr.
    nl : bool
        Whether to end with a new line.
    """
    click.echo(printable(text, keep="\n"), err=err, nl=nl)
