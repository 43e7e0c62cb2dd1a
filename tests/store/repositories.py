"""Histories whose files the tests of the store look at, damage and exchange."""

from __future__ import annotations

from pathlib import Path

from mvc.api import Repository, Tuning
from mvc.store.snapshot import IndexThresholds, Snapshot
from tests import histories
from tests.index_files import index_file
from tests.maintenance.damaging import lost_in

__all__ = ["CheckedHistory", "state", "view_of"]

state = histories.weights


class CheckedHistory(histories.CheckedHistory):
    """Every version is deployed."""

    wrong = lost_in

    def __init__(
        self, root: Path, count: int, *, thresholds: IndexThresholds | None = None
    ) -> None:
        super().__init__(root, count)
        self.thresholds = thresholds

    def open(self) -> Repository:
        self.options["tuning"] = Tuning(thresholds=self.thresholds)
        return super().open()

    def add(self, repo: Repository) -> None:
        self.commit(repo=repo, deploy="prod")

    def index(self) -> None:
        with self.open() as repo:
            view_of(repo).index_tail(force=True)

    @property
    def index_file(self) -> Path:
        return index_file(self.root)

    @property
    def journal(self) -> Path:
        return self.root / ".mvc/journal"

    @property
    def pack(self) -> Path:
        return self.root / ".mvc/packs/00000001.pack"


def view_of(repo: Repository) -> Snapshot:
    return repo.handle.store.snapshot
