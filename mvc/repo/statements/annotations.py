"""Annotations: metrics, params and notes that are added to a version after its commit.

An annotation is recorded separately, with an author and a time. The version's id does not change.
Undone annotations do not count. If a metric or param has several values, the newest value counts.
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
    """An annotation. ``number``: the number of the operation that added the annotation.

    ``time_ns``: when ``author`` added the annotation, in ns since 1970.
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
    """Adds an annotation to a version. The annotation is durable when the call returns."""
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
    """Reads the annotations of versions."""

    def __init__(self, snapshot: Snapshot, incomplete: list[DamagedData] | None = None) -> None:
        """Raises DamagedData if lost journal entries may contain annotations.

        If ``incomplete`` is not None, the error is appended to this list instead.
        """
        self._snapshot = snapshot
        self._incomplete = incomplete
        with noting(incomplete):
            snapshot.check_gaps(-1, "what was annotated")
        self._any = snapshot.has_any(AnnotationStatement)

    def of(self, commit: CommitId) -> tuple[Annotation, ...]:
        """The annotations of a version, oldest first, without retracted annotations."""
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
    """A version's metrics and params, updated by the annotations ``later``, oldest first."""
    metrics, params = dict(commit.metrics), dict(commit.params)
    for annotation in later:
        metrics |= annotation.metrics
        params |= annotation.params
    return metrics, params
