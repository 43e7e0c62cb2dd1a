"""Annotations: what somebody found out about a version after it was made.

An annotation is a statement of its own, with author and time, so that the version's id stays. One
that was undone does not count. Of several metrics or params with one name the last counts.
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
    """``number``: of the operation. ``author`` added it at ``time_ns``, ns since 1970."""

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
        raise WrongUsage("this annotation says nothing", hint="give it metrics, params or a note")
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
    """The annotations of versions. A repository without any is asked once."""

    def __init__(self, snapshot: Snapshot, incomplete: list[DamagedData] | None = None) -> None:
        """Raises DamagedData where entries are lost that may have annotated; or notes it."""
        self._snapshot = snapshot
        self._incomplete = incomplete
        with noting(incomplete):
            snapshot.check_gaps(-1, "what was annotated")
        self._any = snapshot.has_any(AnnotationStatement)

    def of(self, commit: CommitId) -> tuple[Annotation, ...]:
        """Those that count, in their order."""
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
        """All that was measured of a version, when it was made or later."""
        return self.values(commit)[0]

    def values(self, commit: Commit) -> tuple[Mapping[str, float], Mapping[str, str]]:
        """All metrics and params of a version, when it was made or later."""
        return merged(commit, self.of(commit.id))


def merged(commit: Commit, later: Iterable[Annotation]) -> tuple[dict[str, float], dict[str, str]]:
    """A version's metrics and params; of several with one name the last counts."""
    metrics, params = dict(commit.metrics), dict(commit.params)
    for each in later:
        metrics |= each.metrics
        params |= each.params
    return metrics, params
