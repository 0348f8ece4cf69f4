"""Output of commands: JSON or text on stdout, progress on a terminal, files written atomically."""

import contextlib
import datetime
import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from groupdro.cli.failures import UserError, echo, user_errors
from groupdro.utils.arguments import printable
from groupdro.utils.files import sync_folder

__all__ = ["atomic_path", "check_output", "plain", "progress", "show", "write_page"]


def plain(value: Any) -> Any:
    """Return a JSON-compatible value: numbers in full precision, or null if they are not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, datetime.date | os.PathLike):
        return str(value)
    raise TypeError(f"{value!r} cannot be written as JSON")


def show(document: dict[str, Any], text: str, *, as_json: bool, warned: Iterable[str] = ()) -> None:
    """Print the result of a command: warnings on stderr, and one JSON document or text on stdout.

    Parameters
    ----------
    document : dict
        Output with --json.
    text : str
        Output without --json.
    as_json : bool
        Whether --json was given.
    warned : iterable of str
        The warnings.
    """
    for warning in warned:
        echo(f"Warning: {warning}", err=True)
    if as_json:
        text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
        # JSON escapes characters below a space; escape all others that a terminal would obey as well.
        click.echo("".join(c if c == "\n" or printable(c) == c else f"\\u{ord(c):04x}" for c in text))
    else:
        echo(text)


# ---------------------------------------------------------------------- files


def check_output(path: Path, option: str, *, force: bool) -> None:
    """Raise, before any work is done, if a file cannot or should not be written."""
    if path.is_dir():
        raise UserError(f"{option} {str(path)!r} is a directory.")
    if not path.parent.is_dir():
        raise UserError(f"{option} {str(path)!r}: there is no directory {str(path.parent)!r}.")
    if path.exists() and not force:
        raise UserError(f"{option} {str(path)!r} exists: pass --force to replace it.")


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces the file on success and is removed otherwise."""
    # Keep the suffix: writers may choose format and compression by it.
    temporary = path.with_name(f".{secrets.token_hex(8)}.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_page(path: Path, page: str) -> None:
    """Write the page of --html."""
    with user_errors("--html"), atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


# ---------------------------------------------------------------------- progress


@contextlib.contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """Show the current activity on stderr if it is a terminal; the yielded function adds details."""
    console = None
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):  # rich is optional; without it no progress is shown
            from rich.console import Console
            from rich.text import Text  # Text is never parsed as markup, which a group's name might contain

            console = Console(stderr=True, highlight=False)
    if console is None:
        yield lambda _: None
        return

    def line(text: str) -> Any:
        room = max(10, console.width - 4)  # leave room for the spinner, so that lines do not wrap
        text = printable(text)
        return Text(text if len(text) <= room else f"{text[: room - 3]}...")

    with console.status(line(f"{doing} ...")) as status:
        yield lambda more: status.update(line(f"{doing}: {more}"))
