"""Annotations: metrics, params and notes added to a version later.

An annotation is a statement with its own author and time, so that the version's id stays the same.
Undone annotations do not count. The last value of a metric or param counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.limits import MAX_MESSAGE
from mvc.model.commit import Commit
from mvc.model.statement import AnnotationStatement, Retraction
from mvc.names import encode_text
from mvc.repo.config import Config
from mvc.repo.damage import noting
from mvc.repo.lookup import commits
from mvc.repo.values import check_values, metrics_from, params_from
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store


class Annotation(Struct, frozen=True):
    """``number``: that of the operation. ``time_ns``: when ``author`` added it, in ns since
    1970.
    """

    number: int
    author: str
    time_ns: int
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    note: str


def annotate(
    store: Store,
    config: Config,
    commit: CommitId,
    *,
    metrics: Mapping[str, object],
    params: Mapping[str, object],
    note: str,
) -> Annotation:
    """``Repository.annotate``; durable on return."""
    if not (metrics or params or note):
        raise WrongUsage("the annotation is empty", hint="add metrics, params or a note")
    if len(encode_text(note)) > MAX_MESSAGE:
        raise WrongUsage(f"the note is longer than {MAX_MESSAGE} bytes")
    draft = AnnotationStatement(
        subject=commit, metrics=metrics_from(metrics), params=params_from(params), note=note
    )
    check_values(draft.metrics, draft.params)

    def make() -> Entry:
        commits.get(store.snapshot, commit)
        statement = replace(draft, author=config.author)
        return Entry("annotate", store.now_ns(), commit.short, statements=(statement,))

    recorded = store.publish(make)
    return _annotation(recorded, *recorded.entry.of(AnnotationStatement))


def _annotation(recorded: Recorded, statement: AnnotationStatement) -> Annotation:
    return Annotation(
        recorded.sequence,
        statement.author,
        statement.recorded_ns,
        metrics=statement.metrics,
        params=statement.params,
        note=statement.note,
    )


class Annotations:
    """Reads annotations of versions; a repository without any is asked once."""

    def __init__(self, snapshot: Snapshot, incomplete: list[DamagedData] | None = None) -> None:
        """Raises (or appends to ``incomplete``) DamagedData if lost entries may have
        annotations.
        """
        self._snapshot = snapshot
        self._incomplete = incomplete
        with noting(incomplete):
            snapshot.check_gaps(-1, "what was annotated")
        self._any = snapshot.has_any(AnnotationStatement)

    def of(self, commit: CommitId) -> tuple[Annotation, ...]:
        """Those that count, in order."""
        if not self._any:
            return ()
        with noting(self._incomplete):
            return tuple(
                _annotation(recorded, statement)
                for recorded, statement in self._snapshot.about(AnnotationStatement, commit)
                if not self._snapshot.is_subject(Retraction, statement.id)
            )
        return ()

    def metrics(self, commit: Commit) -> Mapping[str, float]:
        """A version's metrics, updated by its annotations."""
        return self.values(commit)[0]

    def values(self, commit: Commit) -> tuple[Mapping[str, float], Mapping[str, str]]:
        """A version's metrics and params, updated by its annotations."""
        return merged(commit, self.of(commit.id))


def merged(commit: Commit, later: Iterable[Annotation]) -> tuple[dict[str, float], dict[str, str]]:
    """A version's metrics and params; the last value of a name counts."""
    metrics, params = dict(commit.metrics), dict(commit.params)
    for annotation in later:
        metrics |= annotation.metrics
        params |= annotation.params
    return metrics, params
