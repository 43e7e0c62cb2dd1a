"""Opens the door that a URL leads to; the modules of doors are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mvc.errors import MvcError, NotARepository, RemoteUnreachable
from mvc.io.files import FileSystem
from mvc.names import printable
from mvc.remote.door import Door
from mvc.remote.remotes import BUCKETS, Remote, normalised
from mvc.repo.context import Context
from mvc.store.store import FOLDER

_DOORS: dict[str, str] = {
    "file": "mvc.remote.folder",
    "ssh": "mvc.remote.ssh",
    **dict.fromkeys(("https", "http", "unix"), "mvc.remote.http"),
    **dict.fromkeys(BUCKETS, "mvc.remote.bucket.door"),
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
        check_folder(remote)
    opened: Callable[[Remote, Context | None], Door] = door_module(remote).open_door
    return opened(remote, context)


def door_module(remote: Remote) -> ModuleType:
    """The module of a remote's door, imported."""
    return import_module(_DOORS[remote.scheme])


def check_folder(remote: Remote) -> None:
    """Refuses a folder that cannot be a remote, in words of remotes."""
    fs, folder = FileSystem(), Path(remote.url)
    shown = printable(str(folder))
    if fs.stat(folder) is None:
        raise RemoteUnreachable(f"there is no folder {shown}", hint=_absent(remote, shown))
    if fs.is_network_filesystem(folder):
        raise RemoteUnreachable(
            f"{shown} is on a network file system, where locks and mapped files do not hold",
            hint=f"write bucket:{shown}, or reach the host that has it by ssh://HOST/PATH",
        )
    if fs.stat(folder / FOLDER) is not None:
        return
    if fs.stat(folder / "head") is not None and fs.stat(folder / "packs") is not None:
        raise NotARepository(
            f"{shown} is no repository, but a bucket", hint=f"write bucket:{shown}"
        )
    raise NotARepository(f"{shown} is no repository", hint=_instead(fs, folder))


def _instead(fs: FileSystem, folder: Path) -> str:
    """What to do with a folder that is no repository: it may be one of those that a server has."""
    with suppress(MvcError):
        for name in sorted(fs.list(folder)):
            if fs.stat(folder / name / FOLDER) is not None:
                return f"name the one that is meant, such as {printable(str(folder / name))}"
    return f"make it one with 'mvc init --bare {printable(str(folder))}'"


def _absent(remote: Remote, shown: str) -> str:
    """What to do where there is no folder: a remote may have moved, a URL be mistyped."""
    if remote.name:
        moved = f"'mvc remote add -f {remote.name} PATH' if it has moved"
        return f"is it mounted? {moved}, 'mvc init --bare {shown}' for a new one"
    return (
        "name the remote first: 'mvc push REMOTE REV:NAME'"
        if ":" in Path(remote.url).name
        else f"is the path right? 'mvc init --bare {shown}' makes a new one"
    )
