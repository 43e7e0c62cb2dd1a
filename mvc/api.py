"""The public ``Repository``: the repository's verbs, and those that work on a live training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.model.names import DEFAULT_STATE
from mvc.repo.repository import Repository as StoredRepository
from mvc.repo.repository import Time
from mvc.store.store import FOLDER

if TYPE_CHECKING:
    import torch

    from mvc.repo.maintenance.report import Repaired
    from mvc.serving.served_version import ServedVersion
    from mvc.training.recorder import Recorder
    from mvc.training.resume import Loaded, Resumed

__all__ = ["Repository", "WatchOptions"]


class WatchOptions(TypedDict, total=False):
    """Options of ``watch``, as for ``mvc.Recorder``."""

    deploy: str | None
    pipeline: str
    every: int
    when_full: str
    metrics: Mapping[str, float] | Callable[[], Mapping[str, float]] | None
    include: Sequence[str] | None
    name: str
    queue_bytes: int | None
    start: int | Resumed
    on_deploy: Callable[[ServedVersion], object] | None
    evaluate: Callable[..., Any] | None
    monitor: Callable[..., Any] | None
    exact: Sequence[str]
    keep_training: bool
    message: str
    author: str | None
    scheduler: None
    scaler: None


class Repository(StoredRepository):
    """An open repository; close it, or use it as a context manager.

    Safe across threads and after a fork. Raises subclasses of ``mvc.MvcError``.
    """

    def watch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        **options: Unpack[WatchOptions],
    ) -> Recorder:
        """Records a version after every step of the optimizer, without a line in the loop.

        Raises WrongUsage for a scheduler or scaler, which change after the optimizer's step.
        """
        from mvc.training.watch import watch

        return watch(self, model, optimizer, **options)

    def resume(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        rev: str | CommitId | None = None,
        at: Time | None = None,
        target: str | None = None,
        path: str = DEFAULT_STATE,
    ) -> Resumed:
        """Sets model, optimizer, scheduler, scaler and random generators back to a version.

        The version is named as for ``checkout``; ``path`` is the model's in it. Raises
        CannotResume with the reason, before anything is changed.
        """
        from mvc.training.checks import check_objects
        from mvc.training.resume import resume

        check_objects(model, optimizer, scheduler, scaler)
        return resume(
            self,
            model,
            optimizer,
            scheduler=scheduler,
            scaler=scaler,
            rev=self.find(rev, at=at, target=target),
            name=path,
        )

    def load(
        self,
        model: torch.nn.Module,
        rev: str | CommitId | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        path: str | None = None,
        strict: bool = True,
    ) -> Loaded:
        """Puts a version's weights into a live module, in place; returns what did not fit.

        The version is named as for ``checkout``. Parameters keep their devices. Raises
        DoesNotFit, before anything is changed, where shapes or dtypes differ, and with
        ``strict`` where a key is missing or unexpected.
        """
        from mvc.training.resume import load

        return load(model, self.checkout(rev, at=at, target=target, path=path), strict=strict)

    @classmethod
    def heal(
        cls,
        path: str | PathLike[str] = ".",
        *,
        other: str | PathLike[str] | None = None,
        full: bool = False,
    ) -> Repaired:
        """Repairs the repository of a folder, even one that does not open.

        First the journal and the format file, without which nothing opens, then as
        ``repair`` does. ``other`` is a repository or a copy of a ``.mvc`` folder that may have
        what is damaged here. Raises NotARepository, UnsupportedFormat, and DamagedData where
        what is lost cannot be told from what is there.
        """
        from dataclasses import replace

        from mvc.repo.repair.journal import before_opening
        from mvc.repo.repair.repair import folder_of

        files = FileSystem()
        source = None if other is None else folder_of(files, Path(other))
        folder = files.realpath(Path(path)) / FOLDER
        first = [] if files.stat(folder) is None else before_opening(files, folder, source)
        with cls.open(path, discover=False) as repo:
            done = repo.repair(full=full, other=other)
        return replace(done, healed=(*first, *done.healed))
