"""torchrun as started by `groupdro launch`, with three differences.

Ctrl-C ends it with one line and exit code 130. A script that fails with its own error is not restarted: restarts are
for lost workers. A rendezvous port held by another program is reported at once. This file is run by path and imports
nothing from the package, which would take seconds.
"""

import json
import os
import signal
import socket
import sys
import threading
from datetime import timedelta
from importlib import import_module
from typing import Any

__all__ = ["main"]

INTERRUPTED = 130  # 128 plus the number of SIGINT, as in shells
_ANSWERS = 5.0  # seconds to wait for an answer from the rendezvous


def main(arguments: list[str]) -> int:
    """Run torchrun, and return its exit code.

    Parameters
    ----------
    arguments : list of str
        Arguments of torchrun.

    Returns
    -------
    int
        0 if all workers succeeded.
    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # before torchrun handles signals
        return _interrupted()


def _run(arguments: list[str]) -> int:
    run: Any = import_module("torch.distributed.run")
    api: Any = import_module("torch.distributed.launcher.api")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = run.parse_args(arguments)
    if _held_by_another_program(options.rdzv_endpoint):
        where = f"the rendezvous {options.rdzv_endpoint} is held by another program"
        print(f"Error: {where}, which does not answer like torchrun: use another port.", file=sys.stderr)
        return 1
    api.LocalElasticAgent = _agent(api.LocalElasticAgent)
    try:
        run.run(options)
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            return _interrupted()
        print(f"Error: ended by {signal.Signals(error.sigval).name}.", file=sys.stderr)
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _interrupted() -> int:
    print("Interrupted: all workers were ended.", file=sys.stderr)
    return INTERRUPTED


def _agent(base: Any) -> Any:
    """Return torchrun's agent, which starts and watches the workers of a node, with changed handling of failures."""

    class Agent(base):  # type: ignore[misc]
        _remaining_restarts: int

        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if result.is_failed() and self._remaining_restarts and self._failed_by_itself(result.failures.values()):
                print("The script failed with an error of its own and is not restarted.", file=sys.stderr)
                self._remaining_restarts = 0
            return result

        def _failed_by_itself(self, failures: Any) -> bool:
            """Return whether a worker raised an error other than that of a lost connection."""
            files = [
                *(failure.error_file for failure in failures),
                *getattr(self._pcontext, "error_files", {}).values(),
            ]
            # A worker that lost the connection reports it in its error file, and one that was killed has a negative
            # exit code.
            silent = any(failure.exitcode > 0 and not os.path.isfile(failure.error_file) for failure in failures)
            return silent or any(_is_own_error(path) for path in files)

        def _shutdown(self, death_sig: Any = signal.SIGTERM, *more: Any, **options: Any) -> None:
            # After Ctrl-C every worker would print a traceback. Checkpoints are intact at any moment.
            super()._shutdown(signal.SIGTERM if death_sig == signal.SIGINT else death_sig, *more, **options)

    return Agent


def _is_own_error(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            message = json.load(file)["message"]
        text = message["message"] if isinstance(message, dict) else message
        return not str(text).startswith("CommunicationError")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _held_by_another_program(endpoint: str) -> bool:
    """Return whether something listens at the rendezvous that is not a store of torch."""
    host, _, port = endpoint.rpartition(":")
    if port == "0":
        return False
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS).close()
    except OSError:
        return False  # nobody listens yet, which torchrun can handle
    answered = threading.Event()
    # Another program may keep it waiting longer than its own timeout.
    threading.Thread(target=_ask, args=(host, int(port), answered), daemon=True).start()
    return not answered.wait(_ANSWERS)


def _ask(host: str, port: int, answered: threading.Event) -> None:
    dist: Any = import_module("torch.distributed")
    try:
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_ANSWERS))
        store.check(["groupdro"])
    except RuntimeError:
        return
    answered.set()


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules would shadow others for torch
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # immediately, as a thread may still wait for another program
