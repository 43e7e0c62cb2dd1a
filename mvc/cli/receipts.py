"""Prints receipts. A receipt records which states ``mvc forget`` deleted, when and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.session import Session
from mvc.text import count, format_time, one_line, printable

if TYPE_CHECKING:
    from mvc.api import ForgottenState, Receipt
    from mvc.ids import CommitId


def print_receipt(session: Session, receipt: Receipt, only: CommitId | None = None) -> None:
    """Prints a receipt. ``only``: print only the line of this version."""
    states = count(len(receipt.states), "state")
    by = f" by {printable(receipt.author)}" if receipt.author else ""
    session.line(
        f"Receipt {receipt.number}: {states} forgotten on "
        f"{format_time(receipt.time_ns, precise=False)}{by}"
    )
    for word, text in (("reason", receipt.reason), ("rules", receipt.rules)):
        if text:
            session.line(f"  {word}: {one_line(text)}")
    rows = [
        (str(state.commit), "" if state.root is None else str(state.root), _deleted(state))
        for state in receipt.states
        if only in (None, state.commit)
    ]
    session.table("version, Merkle root, bytes deleted", rows, indent="  ")


def _deleted(state: ForgottenState) -> str:
    if not state.came:
        return "never received"
    at = state.gone_ns
    return "not yet: run 'mvc gc'" if at is None else format_time(at, precise=False)
