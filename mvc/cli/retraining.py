"""``--retrain``: weights that were given up are trained again, for the command that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mvc.cli.session import Session
from mvc.errors import WeightsDropped

if TYPE_CHECKING:
    from mvc.repo.lookup.revisions import Rev

__all__ = ["retrain_options", "retraining", "with_weights"]

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")
_STORED = "nothing is trained: the weights are stored"


def retrain_options(trust: str = "With --retrain: run the stored code.") -> Callable[[_F], _F]:
    """The options that ``retraining`` is given; ``trust`` is the help of ``--trust-code``."""
    options = (
        click.option(
            "--retrain", is_flag=True,
            help="Train weights again that were given up, by their recipe.",
        ),
        click.option(
            "--anyway", is_flag=True,
            help="With --retrain: even if the environment differs; it is verified.",
        ),
        click.option("--trust-code", is_flag=True, help=trust),
    )  # fmt: skip

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@contextmanager
def retraining(
    session: Session, revs: Sequence[Rev | None], *, retrain: bool, trust: bool, anyway: bool
) -> Iterator[None]:
    """While the block runs, weights of these versions that were given up can be read.

    With ``retrain`` they are trained first; without it nothing is done.
    """
    _refuse_alone(retrain, trust, anyway)
    trained = False
    with ExitStack() as held:
        for rev in revs if retrain else ():
            with session.progress("training", counted=True) as progress:
                done = held.enter_context(
                    session.repository.retraining(
                        rev, trust=trust, anyway=anyway, progress=progress
                    )
                )
            trained = trained or done is not None
        if retrain and not trained:
            session.out.note(_STORED)
        yield


def with_weights(
    session: Session,
    revs: Sequence[Rev | None],
    act: Callable[[], _T],
    *,
    retrain: bool,
    trust: bool,
    anyway: bool,
) -> _T:
    """What ``act`` gives. With ``retrain``, weights of these versions that it lacks are trained.

    ``act`` is called before anything is trained, so it has refused by then what it refuses: files
    that are in the way, a folder that cannot be written, a script that fails.
    """
    _refuse_alone(retrain, trust, anyway)
    try:
        done = act()
    except WeightsDropped:
        if not retrain:
            raise
    else:
        if retrain:
            session.out.note(_STORED)
        return done
    with retraining(session, revs, retrain=True, trust=trust, anyway=anyway):
        return act()


def _refuse_alone(retrain: bool, trust: bool, anyway: bool) -> None:
    if (trust or anyway) and not retrain:
        raise click.UsageError(f"{'--trust-code' if trust else '--anyway'} is for --retrain")
