"""The log's line for each change that somebody sent: who sent what, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.io.log import tell
from mvc.names import printable
from mvc.remote.door import Received, Slice
from mvc.remote.slices import Sent, decode_entries
from mvc.server.authority import Caller
from mvc.store.journal.entries import read_evidence
from mvc.store.journal.signatures import read_signatures

_MOST = 100  # names in a field
_LONGEST = 250  # characters of one: what is refused may have any name


def audit(repository: str, caller: Caller, given: Slice, result: Received | BaseException) -> None:
    """Writes the line, unless nothing has changed. Of a refused slice it says what was asked."""
    if isinstance(result, Received) and not result.begun:
        return
    entries, said = tuple[Sent, ...](), Counter[str]()
    with suppress(MvcError):  # it may be refused because it cannot be read
        entries = decode_entries(given.head)
        said = _counted(entries)
    truths = [each.truths for each in entries if each.truths is not None]
    fields = {
        "refs": _listed(
            f"{move.name}:{_id(move.old)}..{_id(move.new)}{' forced' if move.force else ''}"
            for move in given.moves
        ),
        "deployments": _listed(
            f"{made.target}:{CommitId(made.commit).short}" for t in truths for made in t.deployments
        ),
        "statements": ", ".join(f"{number} {kind}" for kind, number in said.items() if number),
    }
    kind = "done" if isinstance(result, Received) else getattr(result, "kind", "internal error")
    words = (f"{name}=[{text}]" for name, text in fields.items() if text)
    tell(
        "mvc.server.audit",
        " ".join((caller.sender, printable(repository) or ".", *words, kind)),
        level="info" if kind == "done" else "warning",
        sender=caller.sender, repository=printable(repository), **fields, result=kind,
    )  # fmt: skip


def _counted(entries: Iterable[Sent]) -> Counter[str]:
    """Versions and statements but deployments, by kind."""
    said, where = Counter[str](), "what was sent"
    for each in entries:
        said["versions"] += len(each.commits)
        said["states"] += len(each.again)
        if (truths := each.truths) is None:
            continue
        said["retractions"] += len(truths.retractions)
        said["forgotten by name"] += len(truths.tombstones)
        if truths.annotations:
            said["annotations"] += len(read_evidence(truths.annotations, where))
        if truths.signatures:
            said["signatures"] += len(read_signatures(truths.signatures, where))
    return said


def _listed(names: Iterable[str]) -> str:
    shown = [printable(name[:_LONGEST]) for name in names]
    more = f" and {len(shown) - _MOST} more" if len(shown) > _MOST else ""
    return ", ".join(shown[:_MOST]) + more


def _id(value: CommitId | None) -> str:
    return "" if value is None else value.short
