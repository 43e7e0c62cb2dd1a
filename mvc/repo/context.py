"""The context of every verb: the open store, the repository's folder, the configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from mvc.adapters.optimizers.trainings import Trainings
from mvc.errors import DamagedData, WrongUsage
from mvc.io.process import host_name, user_name
from mvc.names import check_author, printable
from mvc.repo.config import AUTHOR, Config, own_config
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.store.writing.base_cache import BaseCaches

PLANS = "checkouts"
"""The folder in ``.mvc`` of the plans of checkouts that are under way (``mvc.io.replacement``)."""


class Interrupted(Struct):
    """What became of checkouts whose process was killed.

    ``replaced``: the files that were replaced to complete them, ``moved_head``: whether HEAD was.
    ``given_up``: the files that were left as they are. ``left_alone``: temporary files that the
    plans name and no checkout wrote.
    """

    replaced: tuple[Path, ...] = ()
    moved_head: bool = False
    given_up: tuple[Path, ...] = ()
    left_alone: tuple[Path, ...] = ()


class Context(Struct):
    """``root`` is the folder that contains ``.mvc``.

    ``interrupted``: the checkouts that opening has completed or taken back.
    ``caches``: the states that were committed last; ``trainings``: what they are states of.
    ``own``: the settings that no repository can make, once they were asked for.
    """

    store: Store
    root: Path
    config: Config
    interrupted: Interrupted = field(default_factory=Interrupted)
    caches: BaseCaches = field(default_factory=BaseCaches)
    trainings: Trainings = field(default_factory=Trainings)
    own: Config | None = None

    @property
    def author(self) -> str:
        """Who works with the repository: ``MVC_AUTHOR``, ``user.name``, or the login and the host.

        Raises InvalidName.
        """
        if given := os.environ.get(AUTHOR):
            return check_author(given)
        return str(self.config.get("user.name") or f"{user_name()}@{host_name()}")

    def own_settings(self) -> Config:
        """The settings that no repository can make, as they were when they were asked for first.

        Raises InvalidConfig.
        """
        if self.own is None:
            self.own = own_config(self.store.fs, os.environ)
        return self.own

    @property
    def bare(self) -> bool:
        """Whether the repository has no working files (the setting ``core.bare``)."""
        return bool(self.config.get("core.bare"))

    def check_worktree(self) -> None:
        """Raises WrongUsage in a bare repository, for what reads or writes working files."""
        if self.bare:
            raise WrongUsage(
                f"{printable(str(self.root))} is a bare repository: it has no working files",
                hint="'mvc clone' it to work with its files; 'mvc checkout -o FILE REV' writes one "
                "elsewhere",
            )

    def fresh(self) -> Snapshot:
        """The store's snapshot, refreshed to the current end of the journal.

        Every verb that reads begins with it, so that an open repository sees the entries that
        other processes published.
        """
        snapshot = self.store.snapshot
        snapshot.refresh()
        return snapshot


@contextmanager
def noting(incomplete: list[DamagedData] | None) -> Iterator[None]:
    """Appends a DamagedData of the block to ``incomplete``; raises it if that is None."""
    try:
        yield
    except DamagedData as error:
        if incomplete is None:
            raise
        incomplete.append(error)
