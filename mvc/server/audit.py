"""Writes a log line for each pushed change: the sender, the content, and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.server.authority import Caller
from mvc.system import log_event
from mvc.text import listed, printable
from mvc.transport import Received, Sent, Slice, decode_entries

_MOST = 100  # limit of names in a field
_LONGEST = 250  # limit of characters of a name: a refused name may have any length


def audit(repository: str, caller: Caller, sent: Slice, result: Received | BaseException) -> None:
    """Writes the log line of a slice (a part of a push), unless nothing changed.

    The line of a refused slice has the requested changes.
    """
    if isinstance(result, Received) and not result.begun:
        return
    deployed, counts = list[str](), Counter[str]()
    with suppress(MvcError):  # a slice that cannot be decoded is refused, too
        entries = decode_entries(sent.head)
        deployed = _deployed(entries)
        counts = _counted(entries)
    fields = {
        "refs": _shown(
            f"{move.name}:{_id(move.old)}..{_id(move.new)}{' forced' if move.force else ''}"
            for move in sent.moves
        ),
        "deployments": _shown(deployed),
        "statements": ", ".join(f"{number} {kind}" for kind, number in counts.items() if number),
    }
    kind = "done" if isinstance(result, Received) else getattr(result, "kind", "internal error")
    words = (f"{name}=[{text}]" for name, text in fields.items() if text)
    log_event(
        "mvc.server.audit",
        " ".join((caller.sender, printable(repository) or ".", *words, kind)),
        level="info" if kind == "done" else "warning",
        sender=caller.sender, repository=printable(repository), **fields, result=kind,
    )  # fmt: skip


def _deployed(entries: Iterable[Sent]) -> list[str]:
    """The targets and versions of deployments, including deployments that nodes report."""
    shown = list[str]()
    for sent in entries:
        deployed = ((row.target, row.subject) for row in sent.deployments)
        reported = ((report.target, report.commit) for report in sent.reports)
        shown += (f"{target}:{CommitId(id_).short}" for target, id_ in (*deployed, *reported))
    return shown


def _counted(entries: Iterable[Sent]) -> Counter[str]:
    """Counts versions, states, and statements of each kind except deployments."""
    counts = Counter[str]()
    for entry in entries:
        counts["versions"] += len(entry.commits)
        counts["states"] += len(entry.restored)
        counts.update(f"{s.name}s" for s in entry.decoded if s.name != "deployment")
    return counts


def _shown(names: Iterable[str]) -> str:
    return listed([printable(name[:_LONGEST]) for name in names], _MOST)


def _id(value: CommitId | None) -> str:
    return "" if value is None else value.short
