"""`groupdro` on the command line.

No other part of the package imports it.
"""

import sys

__all__ = ["main"]

try:
    from groupdro.cli.app import commands as _commands
except ModuleNotFoundError as error:  # the command was installed without its extra
    _commands = None  # type: ignore[assignment]
    _missing = error.name


def main() -> None:
    """Run the command."""
    if _commands is None:
        sys.exit(f'The command line requires {_missing}: pip install "groupdro[cli]".')
    _commands(prog_name="groupdro")
