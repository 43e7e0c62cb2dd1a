"""The process of a worker: ``python -m mvc.distributed.runner.script SCRIPT ARGUMENTS``.

It runs the script as Python would. Its stdin is a pipe of the process that started it, and the
process ends with that, so that no worker outlives the command.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from mvc.distributed.runner.launch import REFUSED, Dismissed
from mvc.errors import MvcError
from mvc.system import signal_at_end_of_parent


def end_with_stdin() -> None:
    """Ends this process, and its group, as soon as the one that started it is gone.

    On Linux also if it is stopped: the kernel then wakes it up.
    """
    signal_at_end_of_parent(signal.SIGCONT)

    def watch() -> None:
        while os.read(0, 1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Runs the script; an error of mvc becomes one line."""
    end_with_stdin()
    del sys.argv[0]
    script = sys.argv[0]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except Dismissed:  # the command says why
        return REFUSED
    except MvcError as error:
        sys.stderr.write(f"mvc: {error.message}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
