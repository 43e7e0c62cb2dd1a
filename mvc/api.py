"""The public ``Repository``: the repository's verbs, and those that work on a live training.

``mvc.training`` is made of the class in ``mvc.repo.repository``, and the methods here are made of
``mvc.training``: hence two classes. Whatever opens a repository by its path opens ``public``,
which is the class of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from mvc.model.names import DEFAULT_STATE
from mvc.repo.arguments import checked
from mvc.repo.repository import Repository as StoredRepository
from mvc.repo.repository import Rev, Time

if TYPE_CHECKING:
    import torch

    from mvc.training.recorder import Recorder
    from mvc.training.resume import Loaded, Resumed
    from mvc.training.watch import WatchOptions

__all__ = ["Repository"]


@checked
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
        rev: Rev | None = None,
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
        rev: Rev | None = None,
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


StoredRepository.public = Repository
