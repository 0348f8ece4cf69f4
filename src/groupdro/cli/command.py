"""What all commands share: options, printing, errors and exit codes."""

import contextlib
import functools
import json
import math
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from groupdro.utils.arguments import printable

__all__ = [
    "PATH",
    "UNIT",
    "Outcome",
    "check_output",
    "command",
    "echo",
    "flag",
    "option",
    "progress",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Outcome = tuple[dict[str, Any], str]

PATH = click.Path(path_type=Path)
UNIT = click.FloatRange(0.0, 1.0)

_INVALID_INPUT = 1
_WARNED = 4
_UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h
_INTERRUPTED = 130  # 128 plus the number of SIGINT, as in shells


def option(names: str, text: str, *, choices: tuple[str, ...] = (), **more: Any) -> Decorator:
    """Return an option.

    Parameters
    ----------
    names : str
        Its names, separated by spaces, and the name of the parameter if that differs.
    text : str
        Help text.
    choices : tuple of str
        Allowed values; the first is the default.
    **more
        Passed to `click.option`.

    Returns
    -------
    callable
        Decorator that adds the option to a command.
    """
    if choices:
        more |= {"type": click.Choice(choices), "default": choices[0]}
    return click.option(*names.split(), help=text, show_default="default" in more, **more)


def flag(names: str, text: str) -> Decorator:
    """Return an option without a value."""
    return option(names, text, is_flag=True)


def command(run: Callable[..., Outcome]) -> Callable[..., None]:
    """Add printing, errors and exit codes to a command, with the options --json, --strict and --debug.

    Parameters
    ----------
    run : callable
        Returns the document that --json prints, and the text that is printed otherwise.

    Returns
    -------
    callable
        The function to make a click command of.
    """

    @flag("--json as_json", "Print one JSON document on stdout.")
    @flag("--strict", "Exit with code 4 if there are warnings.")
    @flag("--debug", "Show the traceback of an error.")
    @functools.wraps(run)
    def wrapper(*, as_json: bool, strict: bool, debug: bool, **given: Any) -> None:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                document, text = run(**given)
            warned = list(dict.fromkeys(_one_line(warning.message) for warning in caught))
            for warning in warned:
                echo(f"Warning: {warning}", err=True)
            document = {"command": run.__name__, **document, "warnings": warned}
            echo(json.dumps(_plain(document), indent=2) if as_json else text)
            code, message = (_WARNED if strict and warned else 0), ""
        except (click.ClickException, BrokenPipeError):  # click exits quietly if the reader of a pipe is gone
            raise
        except KeyboardInterrupt as error:
            code, message = _INTERRUPTED, str(error) or "Interrupted: nothing was written."
        except Exception as error:
            code, message = _failure(error)
            if debug:
                echo(traceback.format_exc(), err=True)
        if message:
            echo(message, err=True)
        click.get_current_context().exit(code)

    return wrapper


def _failure(error: Exception) -> tuple[int, str]:
    """Return the exit code and the sentence for an error."""
    sentence = _one_line(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        sentence = error.strerror + (f" ({printable(error.filename)})" if error.filename else "")
    sentence += "" if sentence[-1] in ".!?" else "."
    if isinstance(error, MemoryError):
        sentence = "the table does not fit in memory."
    elif not isinstance(error, ValueError | OSError | ImportError | FloatingPointError):
        hint = "Run again with --debug for the traceback, and please report it."
        return _UNEXPECTED, f"Error: unexpected {type(error).__name__}: {sentence} {hint}"
    return _INVALID_INPUT, f"Error: {sentence}"


def _one_line(message: Any) -> str:
    return printable(" ".join(str(message).split()))


def _plain(value: Any) -> Any:
    """Return a JSON-compatible value: numbers in full precision, or null if they are not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else str(value)


# ---------------------------------------------------------------------- for the functions of commands


def echo(text: str, *, err: bool = False) -> None:
    """Print lines of text, in which control characters are escaped.

    Names of groups, columns and files come from data, and a terminal would obey control characters hidden in them. Pass
    a name within a line through `printable` first, which also escapes line breaks.

    Parameters
    ----------
    text : str
        The lines.
    err : bool
        Whether to print to stderr.
    """
    click.echo(printable(text, keep="\n"), err=err)


@contextlib.contextmanager
def progress(doing: str) -> Iterator[None]:
    """Show the current activity on stderr if it is a terminal."""

    def show(line: str) -> None:
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r{printable(line)[:width]:<{width}}\r", err=True, nl=False)

    show(f"{doing} ...")
    try:
        yield
    finally:
        show("")


def check_output(path: Path | None, argument: str, *, force: bool) -> None:
    """Raise, before any work is done, if a file cannot or should not be written."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{argument} {str(path)!r} is not a file in an existing directory.")
    if path.exists() and not force:
        raise ValueError(f"{argument} {str(path)!r} exists: pass --force to replace it.")
