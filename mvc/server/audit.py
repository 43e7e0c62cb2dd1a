"""The log's line for each change that somebody sent: who sent what, and what became of it."""

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

_MOST = 100  # names in a field
_LONGEST = 250  # characters of one: what is refused may have any name


def audit(repository: str, caller: Caller, given: Slice, result: Received | BaseException) -> None:
    """Writes the line, unless nothing has changed. Of a refused slice it says what was asked."""
    if isinstance(result, Received) and not result.begun:
        return
    deployed, said = list[str](), Counter[str]()
    with suppress(MvcError):  # it may be refused because it cannot be read
        entries = decode_entries(given.head)
        deployed = _deployed(entries)
        said = _counted(entries)
    fields = {
        "refs": _shown(
            f"{move.name}:{_id(move.old)}..{_id(move.new)}{' forced' if move.force else ''}"
            for move in given.moves
        ),
        "deployments": _shown(deployed),
        "statements": ", ".join(f"{number} {kind}" for kind, number in said.items() if number),
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
    """Targets and versions that are deployed, or served by nodes."""
    found = list[str]()
    for sent in entries:
        made = ((each.target, each.subject) for each in sent.deployments)
        reported = ((each.target, each.commit) for each in sent.reports)
        found += (f"{target}:{CommitId(id_).short}" for target, id_ in (*made, *reported))
    return found


def _counted(entries: Iterable[Sent]) -> Counter[str]:
    """Versions, and statements but deployments, by kind."""
    said = Counter[str]()
    for each in entries:
        said["versions"] += len(each.commits)
        said["states"] += len(each.again)
        said.update(f"{s.name}s" for s in each.said if s.name != "deployment")
    return said


def _shown(names: Iterable[str]) -> str:
    return listed([printable(name[:_LONGEST]) for name in names], _MOST)


def _id(value: CommitId | None) -> str:
    return "" if value is None else value.short
