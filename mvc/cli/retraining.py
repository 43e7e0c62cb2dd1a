"""``--retrain``: weights that were given up are trained again, for the command that reads them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from mvc.cli.options import CommandOptions, flag, timeout, trust
from mvc.cli.payload import fields
from mvc.cli.session import Session
from mvc.errors import WeightsDropped

if TYPE_CHECKING:
    from mvc.repo.lookup.revisions import Rev
    from mvc.types import Progress


_T = TypeVar("_T")
_STORED = "nothing is trained: the weights are stored"
_SILENT = 5.0  # seconds after which a command that shows no bar says what it waits for


class Retraining(CommandOptions, frozen=True, kw_only=True):
    """``--retrain`` (``asked``) and the options that go with it."""

    asked: bool = flag("Train weights again that were given up, by their recipe.", "--retrain")
    anyway: bool = flag(
        "With --retrain: even if the environment differs; it is verified.", needs="asked"
    )
    trust_code: bool = flag("With --retrain: run the stored code of the version.", needs="asked")
    trust: tuple[str, ...] = trust("asked")
    timeout: float | None = timeout("asked")


@contextmanager
def training_progress(session: Session) -> Iterator[Progress | None]:
    """A bar for a training; where none can be shown, one line if it takes some seconds."""
    with session.progress("training", counted=True) as bar, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: session.out.note(str(message))
        if bar is not None or session.verbosity < 0:
            yield bar
            return
        due = time.monotonic() + _SILENT

        def tell(_done: int, _total: int, text: str) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = float("inf")
                session.out.note(text)

        yield tell


@contextmanager
def retraining(session: Session, revs: Sequence[Rev | None], options: Retraining) -> Iterator[None]:
    """While the block runs, weights of these versions that were given up can be read.

    With ``--retrain`` they are trained first; without it nothing is done.
    """
    repository, trained = session.repository, False
    named = [repository.find(rev) for rev in revs] if options.asked else []
    trusted = [*options.trust, *(named if options.trust_code else ())]
    with ExitStack() as held:
        for commit in named:
            with training_progress(session) as progress:
                settings = fields(options, "anyway timeout")
                block = repository.recipes.retraining(
                    commit, trust=trusted, progress=progress, **settings
                )
                trained = held.enter_context(block) is not None or trained
        if options.asked and not trained:
            session.out.note(_STORED)
        yield


def with_weights(
    session: Session, revs: Sequence[Rev | None], act: Callable[[], _T], options: Retraining
) -> _T:
    """What ``act`` gives. With ``--retrain``, weights of these versions that it lacks are trained.

    ``act`` is called before anything is trained, so it has refused by then what it refuses: files
    that are in the way, a folder that cannot be written, a script that fails.
    """
    try:
        done = act()
    except WeightsDropped:
        if not options.asked:
            raise
    else:
        if options.asked:
            session.out.note(_STORED)
        return done
    with retraining(session, revs, options):
        return act()
