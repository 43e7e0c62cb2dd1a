"""``mvc.clone`` copies a remote repository. ``mvc.visit`` makes a temporary copy to read from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import fspath
from pathlib import Path

from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.remote.clone import CloneOptions, clone_into
from mvc.repo.handle import Configure
from mvc.types import PathName, Progress


def clone(
    url: PathName,
    folder: PathName | None = None,
    *,
    branch: str | None = None,
    states: str = "all",
    bare: bool = False,
    progress: Progress | None = None,
    **options: str | bool,
) -> Repository:
    """Copies a remote repository into a new folder and opens the copy.

    ``folder``: by default the last part of the URL. ``branch``: the branch to check out.
    ``states``: the versions whose states are copied (``all``, ``none``, ``live``, ``last:N``).
    ``options``: fields of ``Remote``, for the remote ``origin`` of the copy. With the option
    ``lazy=True``, a state that was not copied is fetched when it is used. After a crash, the same
    call continues the copy. Raises RemoteUnreachable, RemoteRefused; WouldOverwrite if the folder
    is not empty.
    """
    chosen = CloneOptions(branch=branch, states=states, bare=bare, options=options)
    destination = None if folder is None else Path(folder)
    cloned = clone_into(fspath(url), destination, chosen, progress=progress)
    return Repository.open(cloned.folder, discover=False)


@contextmanager
def visit(
    url: str,
    *,
    nodes: bool = False,
    config: Configure | None = None,
    progress: Progress | None = None,
    **options: str | bool,
) -> Iterator[Repository]:
    """A temporary copy of a remote repository, for reading: ``with mvc.visit(URL) as repo``.

    Copies the history into a temporary folder, which is deleted at the end of the block. States are
    fetched and verified when they are used. ``nodes``: fetch the reports of nodes (serving
    machines), too. ``options``: fields of ``Remote``. Raises the errors of ``clone``.
    """
    with FileSystem().temporary_folder() as folder:
        options |= {"lazy": True, "nodes": nodes}
        chosen = CloneOptions(states="none", bare=True, options=options)
        copy = folder / "visited"
        clone_into(url, copy, chosen, config=config, progress=progress)
        with Repository.open(copy, discover=False, config=config) as repo:
            yield repo
