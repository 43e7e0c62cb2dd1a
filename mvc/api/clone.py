"""``mvc.clone``: a repository with all that another one has."""

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
    """Makes a repository with all that another one has, and opens it; ``origin`` is the other one.

    ``folder``: by default the last part of the URL. ``branch``: the current one of the clone, by
    default that of the remote. ``states``: whose states come along (``all``, ``none``, ``live``,
    ``last:N``). ``bare``: without working files. ``options``: fields of ``Remote``; with ``lazy``
    what did not come along is fetched when a method asks for it, a version at a time. What a killed
    process leaves is gone on with by the same call. Raises WouldOverwrite for a folder that is not
    empty, RemoteUnreachable, RemoteRefused.
    """
    chosen = CloneOptions(branch=branch, states=states, bare=bare, options=options)
    place = None if folder is None else Path(folder)
    done = clone_into(fspath(url), place, chosen, progress=progress)
    return Repository.open(done.folder, discover=False)


@contextmanager
def visit(
    url: str,
    *,
    nodes: bool = False,
    config: Configure | None = None,
    progress: Progress | None = None,
    **options: str | bool,
) -> Iterator[Repository]:
    """The repository at a URL, to be read without one here: ``with mvc.visit(URL) as repo``.

    A private copy of its history in a temporary folder, which is deleted at the end. States come
    when a method asks for them, a version at a time, and are proven as by a fetch. ``nodes``: what
    nodes report there comes as well. ``options``: fields of ``Remote``. Raises what ``clone`` does.
    """
    with FileSystem().temporary_folder() as folder:
        options |= {"lazy": True, "nodes": nodes}
        chosen = CloneOptions(states="none", bare=True, options=options)
        place = folder / "visited"
        done = clone_into(url, place, chosen, config=config, progress=progress)
        with Repository.open(done.folder, discover=False, config=config) as repo:
            yield repo
