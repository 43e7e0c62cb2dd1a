"""The process of a worker: ``python -m mvc.distributed.runner.script SCRIPT ARGUMENTS``.

``mvc train-distributed`` starts this process for each worker of a distributed training. The process
runs SCRIPT as Python would, and ends when its parent ends. If SCRIPT raises an error of mvc, the
process only stores the message, and ``mvc train-distributed`` prints the first stored message.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import signal
import sys
from pathlib import Path

from mvc.distributed.runner.ranks import TRAINING, TrainingFailed, store_of_command
from mvc.errors import MvcError
from mvc.system import signal_at_end_of_parent


def main() -> int:
    """Runs the script; returns the exit code."""
    signal_at_end_of_parent(signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    logging.basicConfig(format="%(message)s")
    command = json.loads(os.environ[TRAINING])
    logging.getLogger("mvc.distributed").setLevel(command["level"])
    del sys.argv[0]
    script = sys.argv[0]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except MvcError as error:
        by = "" if isinstance(error, TrainingFailed) else f"rank {os.environ['RANK']}: "
        store = store_of_command(command["folder"], int(os.environ["WORLD_SIZE"]))
        store.compare_set("failed", "", f"{by}{error.message}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    if code := main():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of torch must not keep a failed process alive
