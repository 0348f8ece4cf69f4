"""`groupdro` on the command line.

Nothing else of the package imports it.
"""

import sys

__all__ = ["main"]

try:
    import click
except ImportError:  # the command is installed without its extra
    click = None  # type: ignore[assignment]


def main() -> None:
    """Run the command."""
    if click is None:
        sys.exit('The command line needs click: pip install "groupdro[cli]".')
    _commands(prog_name="groupdro")


if click is not None:
    from groupdro.cli.app import commands as _commands
