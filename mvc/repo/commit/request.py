"""What a commit is asked for, and what it tells when it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from mvc.adapters.parsed import ParsedFile
from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.limits import MAX_MESSAGE, MAX_METRICS
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry
from mvc.model.names import check_key, check_ref
from mvc.repo.commit.base_cache import BaseCache
from mvc.store.journal.entries import Deployment

__all__ = [
    "Change",
    "CommitRequest",
    "Kept",
    "PathChange",
    "check_request",
    "metrics_from",
    "path_change",
]


@dataclass(frozen=True)
class Change:
    """One path of the new version: ``open`` parses it, None takes the path out."""

    path: str
    open: Callable[[], AbstractContextManager[ParsedFile]] | None
    last: BaseCache | None = None


@dataclass(frozen=True)
class CommitRequest:
    """What to commit. ``deploy_time_ns`` None: the moment of publishing.

    ``produced_by`` is the lossy pipeline that the contents have been through already; by
    itself a commit is lossless, and of a lossy ``pipeline`` it takes the coding.
    """

    changes: Sequence[Change]
    message: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    deploy: str | None = None
    deploy_time_ns: int | None = None
    pipeline: str | None = None
    reset_point: bool = False
    allow_empty: bool = False
    author: str | None = None
    time_ns: int | None = None
    produced_by: str | None = None
    branch: str | None = None  # another branch than the current one, as it is at the moment


@dataclass(frozen=True, slots=True)
class PathChange:
    """``kind``: added, changed, unchanged or removed; tensors changed and in all."""

    path: str
    kind: str
    tensors_changed: int
    tensors: int


@dataclass(frozen=True)
class Kept:
    """What a commit did. ``stored_bytes``: what it added to packs and journal."""

    commit: Commit
    branch: str | None
    deployment: Deployment | None
    paths: tuple[PathChange, ...]
    raw_bytes: int
    stored_bytes: int
    entries: Mapping[str, FileEntry]

    @property
    def id(self) -> CommitId:
        return self.commit.id


def check_request(request: CommitRequest) -> None:
    """WrongUsage or an error of names, where a request cannot be carried out."""
    if request.deploy_time_ns is not None and request.deploy is None:
        raise WrongUsage("a deployment time without a deployment target")
    if request.deploy is not None:
        check_ref("deployment target", request.deploy)
    if len(request.message.encode("utf-8", "surrogateescape")) > MAX_MESSAGE:
        raise WrongUsage(f"the message is longer than {MAX_MESSAGE} bytes")
    if len(request.metrics) > MAX_METRICS:
        raise WrongUsage(f"more than {MAX_METRICS} metrics")
    for name in request.metrics:
        check_key(name)
    for change in request.changes:
        if sum(c.path == change.path for c in request.changes) > 1:
            raise WrongUsage(f"{change.path} is named twice")


def path_change(old: FileEntry | None, new: FileEntry) -> PathChange:
    """What became of a path, tensor by tensor."""
    if old is None:
        return PathChange(new.path, "added", len(new.tensors), len(new.tensors))
    known = {t.key: t.id for t in old.tensors}
    changed = sum(known.get(t.key) != t.id for t in new.tensors)
    changed += len(set(known) - {t.key for t in new.tensors})
    kind = "unchanged" if old.content_id == new.content_id else "changed"
    return PathChange(new.path, kind, changed, len(new.tensors))


def metrics_from(values: Mapping[str, object]) -> dict[str, float]:
    """Metrics as float64; WrongUsage names one that is no number."""
    result = {}
    for name, value in values.items():
        # A loss that still has its graph: torch would warn of the conversion.
        detach = getattr(value, "detach", None)
        number: Any = detach() if callable(detach) else value
        try:
            result[name] = float(number)
        except (TypeError, ValueError, RuntimeError):
            raise WrongUsage(f"metric {name!r} is not a number: {value!r}") from None
        except OverflowError:
            raise WrongUsage(f"metric {name!r} does not fit a float64") from None
    return result
