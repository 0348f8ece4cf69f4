"""`groupdro` on the command line.

No other part of the package imports it.
"""

import sys

__all__ = ["main"]

try:
    import click
except ImportError:  # the command was installed without its extra
    click = None  # type: ignore[assignment]


def main() -> None:
    """Run the command."""
    if click is None:
        sys.exit('The command line requires click: pip install "groupdro[cli]".')
    _commands(prog_name="groupdro")


if click is not None:
    from groupdro.cli.app import commands as _commands
