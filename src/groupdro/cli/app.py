"""The commands of `groupdro`."""

import click

from groupdro.cli.convert import convert
from groupdro.cli.find import find
from groupdro.cli.report import report
from groupdro.version import __version__

__all__ = ["commands"]

_EXIT_CODES = """\b
Exit codes:
  0    done
  1    invalid input; one sentence on stderr says why
  2    invalid usage of the command
  4    done, but with warnings under --strict
  70   an unexpected error; --debug shows the traceback
  130  interrupted by Ctrl-C
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(__version__)
def commands() -> None:
    """Judge a model's predictions per group: where it fails, and whether that is chance."""


for _command in (report, find, convert):
    commands.add_command(_command)
