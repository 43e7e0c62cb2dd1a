"""``--retrain``: weights that were given up are trained again, for the command that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mvc.cli.session import Session

if TYPE_CHECKING:
    from mvc.repo.lookup.revisions import Rev

__all__ = ["retrain_options", "retraining"]

_F = TypeVar("_F", bound=Callable[..., Any])


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
    if (trust or anyway) and not retrain:
        raise click.UsageError(f"{'--trust-code' if trust else '--anyway'} is for --retrain")
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
            session.out.note("nothing is trained: the weights are stored")
        yield
