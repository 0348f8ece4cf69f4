"""What commands print and write: JSON or text on stdout, progress on a terminal, files written atomically."""

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

from groupdro.cli.failures import UserError, echo, users_mistake
from groupdro.utils.arguments import printable
from groupdro.utils.bundle import sync_folder

__all__ = ["check_output", "plain", "progress", "show", "write_page", "written_whole"]


def plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers in full, or null where they are not finite."""
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
    raise TypeError(f"{value!r} has no place in JSON")


def show(document: dict[str, Any], text: str, *, as_json: bool, warned: Iterable[str] = ()) -> None:
    """Print what a command has found: warnings on stderr, and on stdout its one JSON document or the text.

    Parameters
    ----------
    document : dict
        What --json prints.
    text : str
        What is printed otherwise.
    as_json : bool
        Which of both.
    warned : iterable of str
        The warnings.
    """
    for warning in warned:
        echo(f"Warning: {warning}", err=True)
    if as_json:
        text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
        # JSON escapes all below a space; the rest of what a terminal would obey is written as JSON has it.
        click.echo("".join(c if c == "\n" or printable(c) == c else f"\\u{ord(c):04x}" for c in text))
    else:
        echo(text)


# ---------------------------------------------------------------------- files


def check_output(path: Path, option: str, *, force: bool) -> None:
    """Refuse, before any work is done, a file that could not or should not be written."""
    if path.is_dir():
        raise UserError(f"{option} {str(path)!r} is a directory.")
    if not path.parent.is_dir():
        raise UserError(f"{option} {str(path)!r}: there is no directory {str(path.parent)!r}.")
    if path.exists() and not force:
        raise UserError(f"{option} {str(path)!r} exists: pass --force to replace it.")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to, which becomes the file when all went well and is removed otherwise."""
    # The suffix stays: writers may choose format and compression by it.
    temporary = path.with_name(f".{secrets.token_hex(8)}.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_page(path: Path, page: str) -> None:
    """Write what --html asks for."""
    with users_mistake("--html"), written_whole(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


# ---------------------------------------------------------------------- progress


@contextlib.contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if that is a terminal, what is being done, followed by what the yielded function is given."""
    console = None
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):  # the command works without it, and says nothing on its way
            from rich.console import Console
            from rich.text import Text  # text that is never read as markup, as a group's name might be

            console = Console(stderr=True, highlight=False)
    if console is None:
        yield lambda _: None
        return

    def line(text: str) -> Any:
        room = max(10, console.width - 4)  # next to the spinner, so that no line is broken
        text = printable(text)
        return Text(text if len(text) <= room else f"{text[: room - 3]}...")

    with console.status(line(f"{doing} ...")) as status:
        yield lambda more: status.update(line(f"{doing}: {more}"))
