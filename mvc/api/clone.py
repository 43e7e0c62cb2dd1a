"""``mvc.clone``: a repository with all that another one has."""

from __future__ import annotations

from os import fspath
from pathlib import Path

from mvc.api.repository import Repository
from mvc.remote.clone import Cloned, CloneOptions
from mvc.remote.clone import clone as clone_repository
from mvc.repo.opening import Configure
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
    default that of the remote. ``states``: whose states come along (``all``, ``none``, ``last:N``).
    ``bare``: without working files. ``options``: fields of ``Remote``, such as ``lazy``. What a killed process leaves is gone on with by the same call.
    Raises WouldOverwrite for a folder that is not empty, RemoteUnreachable, RemoteRefused.
    """
    options = CloneOptions(branch=branch, states=states, bare=bare, options=options)
    done = clone_into(url, folder, options, progress=progress)
    return Repository.open(done.folder, discover=False)


def clone_into(
    url: PathName,
    folder: PathName | None,
    options: CloneOptions,
    *,
    config: Configure | None = None,
    progress: Progress | None = None,
) -> Cloned:
    """As ``clone``; returns what came."""
    place = None if folder is None else Path(folder)
    return clone_repository(fspath(url), place, options, config=config, progress=progress)
