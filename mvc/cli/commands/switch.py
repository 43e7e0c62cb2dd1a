"""``mvc switch``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from mvc.cli.completing import complete_branches
from mvc.cli.options import revision
from mvc.cli.program import verb
from mvc.cli.restored import tell, tell_of_training, warn_of_unreached
from mvc.cli.retraining import Retraining, retrain_options, with_weights
from mvc.cli.session import Session
from mvc.errors import UnknownRevision
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.repo.checkout.checkout import Restored


@verb("switch", "mvc switch -c experiment", json=False)
@click.argument("branch", metavar="BRANCH", shell_complete=complete_branches)
@revision("START", required=False)
@click.option("-c", "--create", is_flag=True, help="Make the branch, at START or HEAD.")
@click.option("-f", "--force", is_flag=True, help="Overwrite files that hold uncommitted work.")
@retrain_options()
def command(
    session: Session,
    branch: str,
    start: str | None,
    create: bool,
    force: bool,
    retrain: Retraining,
) -> None:
    """Go to another branch."""
    if start is not None and not create:
        raise click.UsageError("START is where a new branch begins: add -c")
    before, revs = session.repository.head(if_known=True).branch, []
    with suppress(UnknownRevision):  # switch says what is wrong
        revs = [session.repository.find(start if create else branch)] if retrain.asked else []

    def write() -> Restored | None:
        with session.progress("restoring") as progress:
            return session.repository.switch(
                branch, create=create, start=start, force=force, progress=progress
            )

    done = with_weights(session, revs, write, retrain)
    if done is not None:
        tell(session, done)
    session.out.note(f"Switched to {'new ' if create else ''}branch {printable(branch)}")
    tell_of_training(session, before, branch)
    if done is not None:
        warn_of_unreached(session, done)
