"""Opens the door that a URL leads to; the modules of doors are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mvc.errors import NotARepository, RemoteUnreachable
from mvc.io.files import FileSystem
from mvc.model.names import printable
from mvc.remote.door import Door
from mvc.remote.remotes import BUCKETS, Remote, normalised
from mvc.repo.context import Context
from mvc.store.store import FOLDER

_DOORS: dict[str, str] = {
    "file": "mvc.remote.folder",
    "ssh": "mvc.remote.ssh",
    **dict.fromkeys(("https", "http", "unix"), "mvc.remote.http"),
    **dict.fromkeys(BUCKETS, "mvc.remote.bucket"),
}
"""By scheme the module whose ``open_door(remote, context)`` opens it."""


def open_door(remote: Remote | str, context: Context | None = None) -> Door:
    """An open door to a remote, or to the repository at a URL. The caller closes it.

    ``context``: the repository that has the remote, if there is one. Raises WrongUsage for a bad
    URL, RemoteUnreachable, RemoteRefused, NotARepository.
    """
    if isinstance(remote, str):
        remote = Remote(normalised(remote, FileSystem().cwd()))
    if remote.scheme == "file":
        check_folder(Path(remote.url))
    opened: Callable[[Remote, Context | None], Door] = door_module(remote).open_door
    return opened(remote, context)


def door_module(remote: Remote) -> ModuleType:
    """The module of a remote's door, imported."""
    return import_module(_DOORS[remote.scheme])


def check_folder(folder: Path) -> None:
    """Refuses a folder that cannot be a remote, in words of remotes."""
    fs = FileSystem()
    shown = printable(str(folder))
    if fs.stat(folder) is None:
        raise RemoteUnreachable(
            f"there is no folder {shown}", hint=f"make it with 'mvc init --bare {shown}'"
        )
    if fs.is_network_filesystem(folder):
        raise RemoteUnreachable(
            f"{shown} is on a network file system, where locks and mapped files do not hold",
            hint=f"write bucket:{shown}, or reach the host that has it by ssh://HOST/PATH",
        )
    if fs.stat(folder / FOLDER) is None:
        raise NotARepository(
            f"{shown} is no repository", hint=f"make it one with 'mvc init --bare {shown}'"
        )
