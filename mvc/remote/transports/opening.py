"""Opens the transport that a URL leads to, whose module is imported only then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mvc.errors import MvcError, NotARepository, RemoteUnreachable
from mvc.io.files import FileSystem
from mvc.names import FOLDER, printable
from mvc.remote.remotes import BUCKETS, Remote, normalised
from mvc.remote.transport import Transport
from mvc.repo.context import Context

_TRANSPORTS: dict[str, str] = {
    "file": "mvc.remote.transports.folder",
    "ssh": "mvc.remote.transports.ssh",
    **dict.fromkeys(("https", "http", "unix"), "mvc.remote.transports.http"),
    **dict.fromkeys(BUCKETS, "mvc.remote.transports.bucket.transport"),
}
"""By scheme the module whose ``open_transport(remote, context)`` opens it."""


def open_transport(
    remote: Remote | str, context: Context | None = None, *, folder: Path | None = None
) -> Transport:
    """An open transport to a remote, or to the repository at a URL. The caller closes it.

    ``context``: the repository that has the remote, if there is one. ``folder``: where what is
    known of a bucket is kept, by default with the remote. Raises WrongUsage for a bad URL,
    RemoteUnreachable, RemoteRefused, NotARepository.
    """
    if isinstance(remote, str):
        remote = Remote(normalised(remote, FileSystem().cwd()))
    if remote.scheme == "file":
        check_folder(remote)
    open_: Callable[..., Transport] = transport_module(remote).open_transport
    if remote.is_bucket:
        open_ = partial(open_, place=folder)
    return open_(remote, context)


def transport_module(remote: Remote) -> ModuleType:
    """The module of a remote's transport, imported."""
    return import_module(_TRANSPORTS[remote.scheme])


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
