"""A user at a terminal: progress on stderr, and Ctrl-C."""

import contextlib
import os
import select
import signal
import sys
import time

import pytest

from tests.cli.tables import COMMAND, left_over
from tests.cli.test_escapes import HOSTILE, table
from tests.timing import HUNG

for _needed in ("click", "pandas", "pyarrow"):
    pytest.importorskip(_needed)
pty = pytest.importorskip("pty")  # which Windows has not


def at_a_terminal(folder, arguments, until=b""):
    """Run the command on a pseudo-terminal; once `until` is on it, press Ctrl-C. Return exit code and the screen."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests in the background of a shell inherit that it is ignored
        os.environ |= {"TERM": "xterm", "COLUMNS": "100"}
        os.execv(COMMAND, [COMMAND, *arguments])
    screen, begun, pressed = b"", time.monotonic(), not until
    try:
        while time.monotonic() - begun < HUNG:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    screen += os.read(terminal, 65536)
                except OSError:  # the other end is closed
                    break
            if not pressed and until in screen:
                os.write(terminal, b"\x03")
                pressed = True
        else:
            os.kill(child, signal.SIGKILL)
    finally:
        with contextlib.suppress(OSError):
            os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), screen.decode(errors="replace")


@pytest.mark.skipif(sys.platform != "linux", reason="a pseudo-terminal of Linux")
def test_progress_is_shown_and_escaped_and_ctrl_c_ends_without_a_file(tmp_path):
    table(400_000).to_parquet(tmp_path / "t.parquet")
    given = ["find", "t.parquet", "--target", f"target{HOSTILE}", "--probability", f"p{HOSTILE}"]
    code, screen = at_a_terminal(tmp_path, given, until=b"Searching 2 columns")
    assert code == 130, screen
    assert "Interrupted: nothing was written." in screen
    assert "Traceback" not in screen
    assert not [told for told in ("\x1b]0;", "\x07", "\x9b2J", "\u202e") if told in screen]
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert not left_over(tmp_path)
