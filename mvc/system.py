"""Names for access to the operating system: files, clock, processes, waiting.

Other packages import these names from here. The module that defines a name is loaded on first use,
so that commands start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.io.clock import Clock
    from mvc.io.files import (
        TEMPORARY,
        FileIdentity,
        FileLock,
        FileSystem,
        ReadFile,
        WriteFile,
    )
    from mvc.io.flushes import Flushes
    from mvc.io.log import log_event
    from mvc.io.os_errors import failure, sync_failure
    from mvc.io.patience import SLICE, Patience, StillWaiting, warn
    from mvc.io.process import (
        cpu_count,
        host_name,
        import_path,
        memory_bytes,
        signal_at_end_of_parent,
        trusted_owners,
    )
    from mvc.repo.hook import HookFailed, run_command
    from mvc.repo.ownership import refuse_foreign

__all__ = [
    "SLICE",
    "TEMPORARY",
    "Clock",
    "FileIdentity",
    "FileLock",
    "FileSystem",
    "Flushes",
    "HookFailed",
    "Patience",
    "ReadFile",
    "StillWaiting",
    "WriteFile",
    "cpu_count",
    "failure",
    "host_name",
    "import_path",
    "log_event",
    "memory_bytes",
    "refuse_foreign",
    "run_command",
    "signal_at_end_of_parent",
    "sync_failure",
    "trusted_owners",
    "warn",
]

_IN = {
    "Clock": "mvc.io.clock",
    "FileIdentity": "mvc.io.files",
    "FileLock": "mvc.io.files",
    "FileSystem": "mvc.io.files",
    "Flushes": "mvc.io.flushes",
    "HookFailed": "mvc.repo.hook",
    "Patience": "mvc.io.patience",
    "ReadFile": "mvc.io.files",
    "SLICE": "mvc.io.patience",
    "StillWaiting": "mvc.io.patience",
    "TEMPORARY": "mvc.io.files",
    "WriteFile": "mvc.io.files",
    "cpu_count": "mvc.io.process",
    "failure": "mvc.io.os_errors",
    "host_name": "mvc.io.process",
    "import_path": "mvc.io.process",
    "memory_bytes": "mvc.io.process",
    "refuse_foreign": "mvc.repo.ownership",
    "run_command": "mvc.repo.hook",
    "signal_at_end_of_parent": "mvc.io.process",
    "sync_failure": "mvc.io.os_errors",
    "log_event": "mvc.io.log",
    "trusted_owners": "mvc.io.process",
    "warn": "mvc.io.patience",
}

__getattr__ = face(__name__, _IN)
