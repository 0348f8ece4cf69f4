"""How tests measure and wait on a machine that may be busy.

Work is limited in CPU seconds, which other processes hardly change. Waiting for another process has only a guard
against hanging, which is not a limit on speed.
"""

import contextlib
import os
import signal
import threading
import time

import psutil

__all__ = ["HUNG", "cpu_seconds", "cpu_seconds_of", "interrupted_after", "spin"]

HUNG = 900.0  # seconds by the clock after which another process or thread counts as hung


def cpu_seconds(work):
    """Return what ``work()`` returns, and the CPU seconds that this process spent on it, all threads together."""
    begun = time.process_time()
    return work(), time.process_time() - begun


def cpu_seconds_of(pid):
    """Return the CPU seconds that another process has spent so far, to about a hundredth."""
    spent = psutil.Process(pid).cpu_times()
    return spent.user + spent.system


def spin(seconds):
    """Spend CPU seconds, undisturbed by Ctrl-C."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        with contextlib.suppress(KeyboardInterrupt):
            while time.process_time() < end:
                pass


@contextlib.contextmanager
def interrupted_after(seconds):
    """Press Ctrl-C when this process has spent so many CPU seconds inside the ``with`` statement."""
    end, over = time.process_time() + seconds, threading.Event()

    def press():
        while not over.wait(0.01):
            if time.process_time() >= end:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
