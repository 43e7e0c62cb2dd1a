"""``--retrain``: weights that were given up are trained again, for the command that reads them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from mvc.cli.completing import complete_revisions
from mvc.cli.session import Session
from mvc.errors import WeightsDropped

if TYPE_CHECKING:
    from mvc.repo.lookup.revisions import Rev
    from mvc.types import Progress

__all__ = [
    "TIMEOUT", "TRUST", "Retraining", "retrain_options", "retraining", "training_progress",
    "with_weights",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")
_STORED = "nothing is trained: the weights are stored"
_SILENT = 5.0  # seconds after which a command that shows no bar says what it waits for

TRUST = click.option(
    "--trust", metavar="REV", multiple=True, shell_complete=complete_revisions,
    help="Run the stored code of REV, too: a base that is trained first.",
)  # fmt: skip
TIMEOUT = click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(0, min_open=True),
    help="End the training of a version that takes longer.",
)  # fmt: skip


class Retraining(Struct, frozen=True):
    """``--retrain`` (``asked``) and the options that go with it."""

    asked: bool
    anyway: bool
    trust_code: bool
    trust: tuple[str, ...]
    timeout: float | None

    def check(self, *, trust_code: bool = False) -> None:
        """Raises UsageError for an option without ``--retrain``, but for ``--trust-code`` if so."""
        given = {
            "--trust-code": self.trust_code and not trust_code, "--trust": self.trust,
            "--anyway": self.anyway, "--timeout": self.timeout,
        }  # fmt: skip
        for name in (name for name, value in given.items() if value and not self.asked):
            raise click.UsageError(f"{name} is for --retrain")


def retrain_options(
    trust: str = "With --retrain: run the stored code of the version.",
) -> Callable[[_F], _F]:
    """Gives a command ``retrain: Retraining``; ``trust`` is the help of ``--trust-code``."""
    options = (
        click.option(
            "--retrain", "asked", is_flag=True,
            help="Train weights again that were given up, by their recipe.",
        ),
        click.option(
            "--anyway", is_flag=True,
            help="With --retrain: even if the environment differs; it is verified.",
        ),
        click.option("--trust-code", is_flag=True, help=trust),
        TRUST,
        TIMEOUT,
    )  # fmt: skip

    def decorate(function: _F) -> _F:
        @wraps(function)
        def command(*args: Any, **given: Any) -> Any:
            fields = {name: given.pop(name) for name in Retraining.__annotations__}
            return function(*args, retrain=Retraining(**fields), **given)

        made: Any = command
        for option in reversed(options):
            made = option(made)
        return made  # type: ignore[no-any-return]

    return decorate


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
    options.check()
    with ExitStack() as held:
        if options.asked and not _train(session, revs, options, held):
            session.out.note(_STORED)
        yield


def _train(
    session: Session, revs: Sequence[Rev | None], options: Retraining, held: ExitStack
) -> bool:
    """Trains what is not stored, readable until ``held`` ends. False if nothing was trained."""
    repository, trained = session.repository, False
    named = [repository.find(rev) for rev in revs]
    trusted = [*options.trust, *(named if options.trust_code else ())]
    for commit in named:
        with training_progress(session) as progress:
            block = repository.recipes.retraining(
                commit,
                trust=trusted,
                anyway=options.anyway,
                timeout=options.timeout,
                progress=progress,
            )
            trained = held.enter_context(block) is not None or trained
    return trained


def with_weights(
    session: Session, revs: Sequence[Rev | None], act: Callable[[], _T], options: Retraining
) -> _T:
    """What ``act`` gives. With ``--retrain``, weights of these versions that it lacks are trained.

    ``act`` is called before anything is trained, so it has refused by then what it refuses: files
    that are in the way, a folder that cannot be written, a script that fails.
    """
    options.check()
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
