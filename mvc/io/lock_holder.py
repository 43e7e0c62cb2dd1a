"""Names the process that has a file lock, for messages. Works only on Linux."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_SHOWN = 60  # characters of a command that are shown


def lock_holder(path: Path) -> str:
    """Describes the process that has a lock on ``path``, such as "process 4242 (mvc gc)".

    For a stopped process, the text ends with ", which is stopped,". The result is "another process"
    if the system does not show the process.
    """
    with suppress(OSError, ValueError, IndexError):
        status = path.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _number, kind, *_, pid, place, _start, _end = line.split()
            if kind == "FLOCK" and place == device and int(pid) > 0:
                return _described(int(pid))
    return "another process"


def _described(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    words[0] = Path(words[0]).name
    state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    text = "".join(c if c.isprintable() else " " for c in " ".join(words))
    shown = " ".join(text.split())[:_SHOWN]
    who = "this process" if pid == os.getpid() else f"process {pid}"
    return f"{who} ({shown})" + (", which is stopped," if state in "Tt" else "")
