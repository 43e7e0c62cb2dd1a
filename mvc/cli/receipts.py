"""How a receipt of forgotten states is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.session import Session
from mvc.text import count, format_time, one_line, printable

if TYPE_CHECKING:
    from mvc.api import ForgottenState, Receipt
    from mvc.ids import CommitId


def print_receipt(session: Session, receipt: Receipt, only: CommitId | None = None) -> None:
    """Who forgot which states when, why, and since when no byte is left; ``only`` of a version."""
    states = count(len(receipt.states), "state")
    by = f" by {printable(receipt.author)}" if receipt.author else ""
    when = format_time(receipt.time_ns, precise=False)
    session.line(f"Receipt {receipt.number}: {states} forgotten on {when}{by}")
    for word, text in (("why", receipt.reason), ("rules", receipt.rules)):
        if text:
            session.line(f"  {word}: {one_line(text)}")
    rows = [
        (str(state.commit), "" if state.root is None else str(state.root), _gone(state))
        for state in receipt.states
        if only in (None, state.commit)
    ]
    session.table("version, Merkle root, bytes gone", rows, indent="  ")


def _gone(state: ForgottenState) -> str:
    if not state.came:
        return "never here"
    at = state.gone_ns
    return "not yet: 'mvc gc'" if at is None else format_time(at, precise=False)
