"""``mvc.clone`` and ``mvc.visit``: copies of a remote repository, permanent or temporary."""

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
    """Copies a remote repository into a new folder and opens it; its remote is named ``origin``.

    ``folder``: by default the last part of the URL. ``branch``: the one to check out. ``states``:
    of which versions to copy states (``all``, ``none``, ``live``, ``last:N``). ``options``: fields
    of ``Remote``; with ``lazy`` absent states are fetched on use. Call again to continue after a
    crash. Raises WouldOverwrite for a folder that is not empty, RemoteUnreachable, RemoteRefused.
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
    """A temporary read-only view of the repository at a URL: ``with mvc.visit(URL) as repo``.

    Copies the history into a temporary folder, which is deleted at the end. States are fetched on
    use and verified as by a fetch. ``nodes``: also fetch what nodes report. ``options``: fields of
    ``Remote``. Raises the errors of ``clone``.
    """
    with FileSystem().temporary_folder() as folder:
        options |= {"lazy": True, "nodes": nodes}
        chosen = CloneOptions(states="none", bare=True, options=options)
        copy = folder / "visited"
        clone_into(url, copy, chosen, config=config, progress=progress)
        with Repository.open(copy, discover=False, config=config) as repo:
            yield repo
