"""Facts about this process and its machine: user, host, CPUs and memory.

If a fact is unknown, a function returns a default, so that a commit does not fail.
"""

from __future__ import annotations

import gc
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_UID_DIGITS = 10
_SET_DEATH_SIGNAL = 1  # of prctl(2)
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_BOOT = "/proc/sys/kernel/random/boot_id"


def user_name(uid: int | None = None) -> str:
    """The login name of a user, by default of this process's user; ``uid-7`` if it has no name."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name or f"uid-{uid}"
    except (KeyError, OSError):
        return f"uid-{uid}"


def trusted_owners() -> frozenset[int]:
    """The ids of users whose files this process trusts: its effective user.

    If the process runs as root under ``sudo``, the user who called ``sudo`` is trusted, too.
    """
    uid = os.geteuid()
    caller = os.environ.get("SUDO_UID", "") if uid == 0 else ""
    known = caller.isascii() and caller.isdigit() and len(caller) <= _UID_DIGITS
    return frozenset({uid, int(caller)} if known else {uid})


def signal_at_end_of_parent(signal: int) -> None:
    """On Linux, makes the kernel send this process a signal when its parent ends.

    The signal arrives even while another thread holds Python's GIL.
    """
    import ctypes  # late: it takes a millisecond

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal)


def import_path() -> str:
    """A value of ``PYTHONPATH`` with which another Python process imports the same copy of mvc."""
    present = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *present]))


def host_name() -> str:
    """The name of this machine."""
    return os.uname().nodename or "localhost"


def user_folder(environment: Mapping[str, str], kind: str) -> Path:
    """The user's folder for mvc, such as ``~/.config/mvc``. It may not exist.

    ``kind`` is ``config`` or ``cache``.
    """
    base = environment.get(f"XDG_{kind.upper()}_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / f".{kind}"
    except RuntimeError:  # a user without a home
        folder = Path(f"/.{kind}")
    return folder / "mvc"


def boot_id() -> str:
    """Identifies the present boot of this machine; empty if unknown."""
    with suppress(OSError), open(_BOOT, encoding="ascii") as file:
        return file.read().strip()
    return ""


def cpu_count() -> int:
    """How many CPUs this process may use, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


@cache
def memory_bytes() -> int:
    """The memory of this machine in bytes, or the limit of the control group if it is lower."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            limits.append(int(file.read()))  # "max" if there is no limit
    return min(limit for limit in limits if limit > 0)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disables Python's cyclic garbage collector during the ``with`` block, in all threads.

    While many objects are created, the collector inspects every object repeatedly, which took a
    third of the time of a commit of 100,000 tensors. None of these objects is in a reference cycle.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
