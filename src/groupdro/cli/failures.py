"""How commands speak and end: escaped text, errors of one sentence, exit codes."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click

from groupdro.utils.arguments import printable

__all__ = ["INTERNAL", "INTERRUPTED", "NOT_CONVERGED", "Commands", "UserError", "debug_option", "echo", "users_mistake"]

NOT_CONVERGED = 3
INTERNAL = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it

_DEBUG = "groupdro.debug"  # key in what click keeps for a call


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


class UserError(click.ClickException):
    """A mistake in what was given: one sentence on stderr, exit code 1."""

    def format_message(self) -> str:
        """Return what click prints."""
        return printable(self.message)


@contextlib.contextmanager
def users_mistake(what: str = "") -> Iterator[None]:
    """Turn an error of a call that is about what the user gave into one sentence, after a word about where."""
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


debug_option = click.option("--debug", is_flag=True, expose_value=False, is_eager=True, callback=_remember_debug,
                            help="Show the traceback of an unexpected error.")  # fmt: skip


class Commands(click.Group):
    """The group of all commands, which ends each as the table of exit codes says."""

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
                "Error: the table does not fit in memory: `groupdro convert` makes a store of it, which `groupdro fit` "
                "reads from disk.",
                err=True,
            )
            ctx.exit(1)
        except BrokenPipeError:
            raise  # click ends quietly where nobody reads on
        except Exception as error:
            self._trace(ctx)
            hint = "" if ctx.meta.get(_DEBUG) else " Run again with --debug for the traceback, and please report it."
            echo(f"Error: unexpected {type(error).__name__}: {one_sentence(error)}{hint}", err=True)
            ctx.exit(INTERNAL)

    @staticmethod
    def _trace(ctx: click.Context, *, only_users: bool = False) -> None:
        """Show where the error in flight comes from, with --debug."""
        error = sys.exc_info()[1]
        if ctx.meta.get(_DEBUG) and (not only_users or isinstance(error, UserError)):
            echo("".join(traceback.format_exception(error)), err=True, nl=False)
