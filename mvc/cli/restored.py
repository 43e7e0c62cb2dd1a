"""What checkout and switch say of the files they wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.cli.session import Session
from mvc.cli.text import count
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.repo.checkout import Restored

__all__ = ["restored_json", "tell"]


def tell(session: Session, done: Restored) -> None:
    """Says on stderr how many files were written, deleted, left; with -v which."""
    out = session.out
    if session.verbose and len(done.written) + len(done.deleted) > 1:
        for path in done.written:
            out.note(f"  wrote    {printable(path)}")
        for path in done.deleted:
            out.note(f"  deleted  {printable(path)}")
    single = len(done.written) == 1
    wrote = printable(done.written[0]) if single else count(len(done.written), "file")
    parts = [f"{wrote} written"]
    if done.deleted:
        parts.append(f"{len(done.deleted):,} deleted")
    if done.unchanged:
        parts.append(f"{len(done.unchanged):,} there already")
    out.note(", ".join(parts))


def restored_json(done: Restored) -> dict[str, Any]:
    """The same for programs."""
    return {
        "commit": str(done.commit),
        "written": list(done.written),
        "deleted": list(done.deleted),
        "unchanged": list(done.unchanged),
        "branch": done.branch,
        "head_moved": done.moved_head,
    }
