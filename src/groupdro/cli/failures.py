"""Output and errors of commands: escaped text, one-sentence errors, exit codes."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click

from groupdro.utils.arguments import printable

__all__ = ["INTERNAL", "INTERRUPTED", "NOT_CONVERGED", "Commands", "UserError", "debug_option", "echo", "user_errors"]

NOT_CONVERGED = 3
INTERNAL = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 plus the number of SIGINT, as in shells

_DEBUG = "groupdro.debug"  # key in click's context of a call


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print lines of text, in which control characters are escaped.

    Names of groups, columns and files come from data, and a terminal would obey control characters hidden in them. Pass
    a name within a line through `printable` first, which also escapes line breaks.

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


class UserError(click.ClickException):
    """Invalid input: one sentence on stderr, exit code 1."""

    def format_message(self) -> str:
        """Return the message that click prints."""
        return printable(self.message)


@contextlib.contextmanager
def user_errors(what: str = "") -> Iterator[None]:
    """Turn an error caused by user input into one sentence, prefixed with its location."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        raise UserError(f"{what}{': ' if what else ''}{one_sentence(error)}") from error


def one_sentence(error: BaseException) -> str:
    """Return the message of an error on one line, with a full stop."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({printable(error.filename)})" if error.filename else ""
        return f"{error.strerror}{where}."
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if text[-1] in ".!?" else f"{text}."


def _remember_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    context.meta[_DEBUG] = value


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_remember_debug,
    help="Show the traceback of an unexpected error.",
)


class Commands(click.Group):
    """The group of all commands, with the documented exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            self._trace(ctx, only_users=True)
            raise
        except KeyboardInterrupt as error:
            echo(str(error) or "Interrupted: nothing was written.", err=True)
            ctx.exit(INTERRUPTED)
        except MemoryError:
            echo(
                "Error: the table does not fit in memory: convert it with `groupdro convert` to a store, which "
                "`groupdro fit` reads from disk.",
                err=True,
            )
            ctx.exit(1)
        except BrokenPipeError:
            raise  # click exits quietly if the reader of a pipe is gone
        except Exception as error:
            self._trace(ctx)
            hint = "" if ctx.meta.get(_DEBUG) else " Run again with --debug for the traceback, and please report it."
            echo(f"Error: unexpected {type(error).__name__}: {one_sentence(error)}{hint}", err=True)
            ctx.exit(INTERNAL)

    @staticmethod
    def _trace(ctx: click.Context, *, only_users: bool = False) -> None:
        """Print the traceback of the current error, with --debug."""
        error = sys.exc_info()[1]
        if ctx.meta.get(_DEBUG) and (not only_users or isinstance(error, UserError)):
            echo("".join(traceback.format_exception(error)), err=True, nl=False)
