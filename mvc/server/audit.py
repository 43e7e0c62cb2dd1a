"""Writes the server's audit log: who pushed what, and whether the server accepted it.

A client sends a push in parts, the *slices*. The log has one line for each slice.
"""

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

_MOST = 100  # maximum number of names in a field of the line
_LONGEST = 250  # maximum number of characters of a name in the line


def audit(repository: str, caller: Caller, sent: Slice, result: Received | BaseException) -> None:
    """Writes the log line of a slice, unless the slice changed nothing.

    If the server refused the slice, the line has the changes that the client requested.
    """
    if isinstance(result, Received) and not result.begun:
        return
    deployed, counts = list[str](), Counter[str]()
    with suppress(MvcError):  # the server refuses slices that cannot be decoded: log them, too
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
    """Target and version of each deployment, including deployments reported by serving machines."""
    shown = list[str]()
    for sent in entries:
        deployed = ((row.target, row.subject) for row in sent.deployments)
        reported = ((report.target, report.commit) for report in sent.reports)
        shown += (f"{target}:{CommitId(id_).short}" for target, id_ in (*deployed, *reported))
    return shown


def _counted(entries: Iterable[Sent]) -> Counter[str]:
    """Counts versions, states, and each kind of statement, such as annotations.

    Deployments are not counted, because ``_deployed`` lists them.
    """
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
