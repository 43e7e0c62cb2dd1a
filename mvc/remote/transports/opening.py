"""Opens the connection to a remote, the *transport*: for a folder, ssh, HTTP or a bucket.

Imports the module of a transport only when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mvc.io.files import FileSystem
from mvc.remote.remotes import Remote, normalised
from mvc.remote.transport import Transport
from mvc.repo.config import Config
from mvc.store.store import Store


def open_transport(
    remote: Remote | str,
    store: Store | None = None,
    config: Config | None = None,
    *,
    folder: Path | None = None,
) -> Transport:
    """An open transport to a remote, or to the repository at a URL. The caller must close it.

    ``store``, ``config``: the local repository and its settings, if there is a local repository.
    ``folder``: for a bucket, the folder for the local copy of the bucket's journal; by default, the
    folder of the remote in the local repository. Raises WrongUsage for an invalid URL,
    RemoteUnreachable, RemoteRefused, NotARepository.
    """
    if isinstance(remote, str):
        remote = Remote(normalised(remote, FileSystem().cwd()))
    if remote.is_bucket:
        from mvc.remote.transports.bucket.transport import open_bucket

        return open_bucket(remote, store, config, place=folder)
    open_: Callable[[Remote], Transport] = remote.kind.load().open_transport
    return open_(remote)
