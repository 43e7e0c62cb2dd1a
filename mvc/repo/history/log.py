"""``Repository.log``: a version and its ancestors, newest first, as ``git log``.

The versions are read lazily. Options filter and sort the versions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, overload

from msgspec import Struct

from mvc.errors import DamagedData, NotInstalled, UnknownMetric, WrongUsage, how_to_install
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.names import is_under, printable
from mvc.repo.content.compare import FileDiff, compare_paths
from mvc.repo.content.relation import Relation, models, relation
from mvc.repo.damage import noting
from mvc.repo.history.where import Condition, as_number
from mvc.repo.lookup import availability, commits, manifests, refs
from mvc.repo.revisions import Rev, id_or_text, resolve
from mvc.repo.statements.annotations import Annotation, Annotations, merged
from mvc.repo.statements.live import Deployed, check_target, of_commit, on_target
from mvc.repo.version_stats import VersionStats
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.text import measured, text_table
from mvc.times import Time, format_time, moment_of

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN = 20  # versions that ``repr`` shows


class LogEntry(Struct, frozen=True):
    """A commit with its refs and deployments. Fields that are not requested are None.

    ``refs``: ``HEAD``, branches, tags as ``tag: NAME``, and ``REMOTE/NAME``. ``deployments``: all
    deployments of the version, in the order of recording. ``forgotten_ns``: when the state was
    forgotten (ns since 1970). If ``absent`` is true: when the version was received without its
    state. None if the state is stored. ``relations``: how the models of the version relate to the
    models of the nearest ancestor with a stored state. ``dropped``: how to recover dropped weights.
    ``storage``: how the version is stored, how many bytes it takes, and its recovery time.
    ``changes``: maps paths to the differences from the first parent; None if unknown.
    ``annotations``: oldest first, without undone annotations. ``sent_by``: the token or account
    that pushed the version to this repository.
    """

    id: CommitId
    commit: Commit
    refs: tuple[str, ...]
    deployments: tuple[Deployed, ...]
    reset_point: bool | None = None
    forgotten_ns: int | None = None
    relations: tuple[Relation, ...] | None = None
    dropped: availability.Dropped | None = None
    storage: VersionStats | None = None
    changes: Mapping[str, FileDiff] | None = None
    annotations: tuple[Annotation, ...] = ()
    absent: bool = False
    sent_by: str = ""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The version's metrics, updated by its annotations."""
        return merged(self.commit, self.annotations)[0]

    @property
    def params(self) -> Mapping[str, str]:
        """The version's params, updated by its annotations."""
        return merged(self.commit, self.annotations)[1]


class LogOptions(Struct, frozen=True, kw_only=True):
    """Which versions ``Repository.log`` returns, in which order, and with which details.

    ``every``: all versions that a ref reaches, the most recently recorded version first. ``paths``:
    only versions that changed one of these files or folders. ``where``: only versions whose metrics
    and params satisfy this condition, such as ``auc > 0.9 and (lr < 1e-3 or data = "cars")``.
    Values from annotations count, too. ``grep``: only versions whose message, notes, run, params or
    metrics match this regular expression. ``sort``: a metric or numeric param. The highest value
    comes first; with ``-NAME``, the lowest. Versions without a value are omitted.

    ``since``, ``until``: inclusive bounds of the commit time. ``target``: only versions that were
    deployed on this target, sorted by the time of their newest deployment. Retracted deployments do
    not count. With ``target``, ``since`` and ``until`` are bounds of the deployment time, and the
    version that was live at ``since`` is included. ``reset_points``, ``changes``, ``relations``:
    whether to fill these fields of ``LogEntry``. ``prices``: whether to fill ``storage``, which
    takes as long as ``Storage.stats``.
    """

    every: bool = False
    paths: Sequence[str] = ()
    where: str | None = None
    grep: str | None = None
    sort: str | None = None
    target: str | None = None
    since: Time | None = None
    until: Time | None = None
    reset_points: bool = False
    relations: bool = False
    changes: bool = False
    prices: bool = False


class Log(Sequence[LogEntry]):
    """A lazy list of versions, newest first.

    ``len`` and negative indices read the whole history. Reading raises DamagedData if entries of
    the journal (the file with all operations) are damaged.
    """

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self._read: list[LogEntry] = []
        self._rest = iter(entries)

    def _entries(self, stop: int | None) -> list[LogEntry]:
        """Reads and returns at least the first ``stop`` entries. None: all entries."""
        if stop is None:
            self._read.extend(self._rest)
        elif stop > len(self._read):
            self._read.extend(islice(self._rest, stop - len(self._read)))
        return self._read

    @overload
    def __getitem__(self, index: int) -> LogEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogEntry]: ...
    def __getitem__(self, index: int | slice) -> LogEntry | list[LogEntry]:
        if isinstance(index, int):
            return self._entries(index + 1 if index >= 0 else None)[index]
        stop = index.stop
        bounded = stop is not None and min(index.start or 0, stop, index.step or 1) >= 0
        return self._entries(stop if bounded else None)[index]

    def __len__(self) -> int:
        return len(self._entries(None))

    def __repr__(self) -> str:
        """The first versions, as a table."""
        entries = self._entries(_SHOWN + 1)
        if not entries:
            return "<Log: no versions>"
        return text_table(map(_log_row, entries[:_SHOWN])) + "\n..." * (len(entries) > _SHOWN)

    def to_pandas(self) -> DataFrame:
        """A table with one row for each version, and columns ``metrics.NAME`` and ``params.NAME``.

        ``time`` is in UTC. Params are texts. If all texts of a param are numbers, its column has
        numbers. Raises NotInstalled if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise NotInstalled("to_pandas needs pandas", hint=how_to_install("pandas")) from None
        entries = self._entries(None)
        table = pandas.DataFrame({
            "version": [str(entry.id) for entry in entries],
            "time": pandas.to_datetime([e.commit.time_ns for e in entries], utc=True),
            "author": [entry.commit.author for entry in entries],
            "message": [entry.commit.message for entry in entries],
            "run": [entry.commit.run for entry in entries],
            "refs": [list(entry.refs) for entry in entries],
            "deployed": [_deployed_to(entry) for entry in entries],
        })  # fmt: skip
        metrics = {name: None for entry in entries for name in sorted(entry.metrics)}
        params = {name: None for entry in entries for name in sorted(entry.params)}
        for name in metrics:
            column = [entry.metrics.get(name, math.nan) for entry in entries]
            table[f"metrics.{name}"] = pandas.Series(column, dtype=float)
        for name in params:
            texts = [entry.params.get(name) for entry in entries]
            table[f"params.{name}"] = pandas.Series(_numbers(texts) or texts)
        return table


def _deployed_to(entry: LogEntry) -> list[str]:
    return list(dict.fromkeys(d.target for d in entry.deployments if not d.retracted))


def _numbers(texts: Iterable[str | None]) -> list[float] | None:
    """The texts as numbers, and NaN for each None. Returns None if a text is no number."""
    try:
        return [math.nan if text is None else float(text) for text in texts]
    except ValueError:
        return None


def _log_row(entry: LogEntry) -> Sequence[str]:
    commit = entry.commit
    return (
        entry.id.short,
        ", ".join(entry.refs),
        ", ".join(_deployed_to(entry)),
        format_time(commit.time_ns, precise=False),
        commit.message.strip().partition("\n")[0],
        measured(entry.metrics),
        "  ".join(f"{name}={value}" for name, value in sorted(entry.params.items())),
    )


def log(
    store: Store,
    rev: Rev,
    options: LogOptions,
    *,
    limit: int | None = None,
    incomplete: list[DamagedData] | None = None,
    storage: Mapping[CommitId, VersionStats] | None = None,
) -> Log:
    """``Repository.log``. The result is lazy, but ``sort`` reads the whole history first."""
    if limit is not None and limit < 0:
        raise WrongUsage(f"a limit must be 0 or more versions, not {limit}")
    wanted = Condition(options.where) if options.where is not None else None
    pattern = _pattern(options.grep) if options.grep is not None else None
    snapshot, hidden = store.fresh(), None
    since, until = (
        None if bound is None else moment_of(bound, now_ns=store.clock.now_ns())
        for bound in (options.since, options.until)
    )
    every, target, paths, sort = options.every, options.target, options.paths, options.sort
    names = names_by_commit(snapshot)
    if every:
        if rev != "HEAD":
            raise WrongUsage("name a revision or all, not both")
        starts = list(names)
    else:
        starts, hidden = _range(store, rev)
    if target is None:
        selected = commits.ancestry(
            snapshot, starts, since, until, incomplete=incomplete, hidden=hidden, published=every
        )
    else:
        check_target(snapshot, target)
        selected = _by_deployment(
            snapshot, starts, target, since, until=until, incomplete=incomplete
        )
        if hidden is not None:
            selected = (commit for commit in selected if commit.id not in hidden)
    if paths:
        selected = (commit for commit in selected if _changes(store, commit, paths))
    annotations = Annotations(snapshot, incomplete)
    if wanted is not None:
        selected = _matching(selected, wanted, annotations)
    if pattern is not None:
        selected = (commit for commit in selected if _mentions(commit, annotations, pattern))
    if sort is not None:
        selected = iter(_sorted(list(selected), sort, annotations))
    return Log(
        LogEntry(
            commit.id,
            commit,
            tuple(names.get(commit.id, ())),
            of_commit(snapshot, commit.id, incomplete),
            reset_point=is_reset_point(store, commit.id) if options.reset_points else None,
            forgotten_ns=None if absence is None else absence.time_ns,
            absent=absence is not None and absence.why == "absent",
            sent_by=commits.placed(snapshot, commit.id)[0].entry.sender,
            relations=_relations_if_known(store, commit, incomplete) if options.relations else None,
            changes=_changes_if_known(store, commit, incomplete) if options.changes else None,
            dropped=availability.dropped(store, commit.id) if commit.needs else None,
            storage=storage.get(commit.id) if storage else None,
            annotations=annotations.of(commit.id),
        )
        for commit in islice(selected, limit)
        for absence in [availability.forgotten(store, commit.id)]
    )


def _relations_if_known(
    store: Store, commit: Commit, incomplete: list[DamagedData] | None
) -> tuple[Relation, ...] | None:
    with noting(incomplete):
        new = manifests.if_stored(store, commit.id)
        if new is not None:
            old = _nearest_manifest(store, commit)
            bases = [] if old is None else models(old.entries)
            return tuple(relation(entry, bases) for entry in models(new.entries))
    return None


def _changes_if_known(
    store: Store, commit: Commit, incomplete: list[DamagedData] | None
) -> dict[str, FileDiff] | None:
    with noting(incomplete):
        new, old = manifests.if_stored(store, commit.id), manifests.EMPTY
        if new is not None and commit.parents:
            parent = manifests.if_stored(store, commit.parents[0])
            new, old = (None, old) if parent is None else (new, parent)
        if new is not None:
            before, after = old.by_path, new.by_path
            pairs = [(path, before.get(path), after.get(path)) for path in sorted(before | after)]
            return {file.path: file for file in compare_paths(pairs)}
    return None


def _nearest_manifest(store: Store, commit: Commit) -> Manifest | None:
    """The file list of the nearest ancestor along first parents whose state is stored."""
    while commit.parents:
        manifest = manifests.if_stored(store, commit.parents[0])
        if manifest is not None:
            return manifest
        commit = commits.get(store.snapshot, commit.parents[0])
    return None


def in_range(
    store: Store, rev: Rev, since: int | None = None, until: int | None = None
) -> Iterator[Commit]:
    """A version and its ancestors, newest first. ``A..B`` excludes A and its ancestors.

    ``since``, ``until``: bounds of the commit times, in ns since 1970.
    """
    starts, hidden = _range(store, rev)
    return commits.ancestry(store.snapshot, starts, since, until, hidden=hidden)


def _range(store: Store, rev: Rev) -> tuple[list[CommitId], commits.Ancestors | None]:
    """The versions at which to start, and the versions to leave out.

    For a revision: its version, and None. For ``A..B``: B, and A with its ancestors.
    """
    rev = id_or_text(rev)
    if not isinstance(rev, str) or ".." not in rev:
        return [resolve(store, rev)], None
    old, _, new = rev.partition("..")
    if new.startswith("."):
        raise WrongUsage("A...B is not supported", hint="write A..B: B without the ancestors of A")
    hidden = commits.Ancestors(store.snapshot, [resolve(store, old or "HEAD")])
    return [resolve(store, new or "HEAD")], hidden


def _changes(store: Store, commit: Commit, paths: Sequence[str]) -> bool:
    """Whether one of the files or folders ``paths`` differs between a version and its first parent.

    False if the state of the version is absent. A parent whose state is absent counts as empty.
    """
    new = manifests.if_stored(store, commit.id)
    if new is None:
        return False
    old = manifests.if_stored(store, commit.parents[0]) if commit.parents else None

    def under(manifest: Manifest | None) -> dict[str, bytes]:
        entries = () if manifest is None else manifest.entries
        return {e.path: e.content_id for e in entries if is_under(e.path, paths)}

    return under(old) != under(new)


def _sorted(selected: list[Commit], sort: str, annotations: Annotations) -> list[Commit]:
    """The versions that have the metric or param ``sort``, highest value first.

    If ``sort`` is ``-NAME``, the lowest value comes first. Versions with equal values keep their
    order. Raises UnknownMetric if no version has a value.
    """
    name = sort.removeprefix("-")
    numbers: dict[CommitId, float] = {}
    for commit in selected:
        metrics, params = annotations.values(commit)
        number = as_number(metrics[name] if name in metrics else params.get(name, ""))
        if number is not None and not math.isnan(number):
            numbers[commit.id] = number
    if selected and not numbers:
        raise commits.unknown_metric(name, map(annotations.metrics, selected))
    having = [commit for commit in selected if commit.id in numbers]
    return sorted(having, key=lambda commit: numbers[commit.id], reverse=name == sort)


def _matching(
    selected: Iterator[Commit], wanted: Condition, annotations: Annotations
) -> Iterator[Commit]:
    """Yields the versions that satisfy a condition.

    Raises UnknownMetric after the last version if no version satisfied the condition, and the
    condition names a metric or param that no version has.
    """
    missing, known, some = set(wanted.names), set[str](), False
    for commit in selected:
        values = _values(commit, annotations)
        missing -= values.keys()
        known |= values.keys()
        if wanted(values):
            some = True
            yield commit
    if missing and known and not some:
        raise UnknownMetric(
            f"no version has {printable(min(missing)[:100])}",
            hint=f"available: {', '.join(map(printable, sorted(known)[:10]))}",
        )


def _values(commit: Commit, annotations: Annotations) -> dict[str, float | str]:
    """Maps each name that a condition may use to its value in a version.

    If two values have the same name, uses the metric rather than the param, and the param rather
    than a text such as the message.
    """
    later = annotations.of(commit.id)
    texts = {"author": commit.author, "message": commit.message, "run": commit.run}
    texts["note"] = "\n".join(annotation.note for annotation in later)
    known = {name: text for name, text in texts.items() if text}
    metrics, params = merged(commit, later)
    return {**known, **params, **metrics}


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise WrongUsage(
            f"{printable(text[:100])!r} is not a regular expression: {error}",
            hint="write a backslash before special characters",
        ) from None


def _mentions(commit: Commit, annotations: Annotations, pattern: re.Pattern[str]) -> bool:
    later = annotations.of(commit.id)
    metrics, params = merged(commit, later)
    texts = (
        commit.message,
        commit.run,
        *(annotation.note for annotation in later),
        *(f"{name}={value}" for name, value in params.items()),
        *(f"{name}={value:g}" for name, value in metrics.items()),
    )
    return any(map(pattern.search, texts))


def is_reset_point(store: Store, commit: CommitId) -> bool:
    """Whether every tensor of a version is stored in full. False if its state is absent."""
    if availability.forgotten(store, commit) is not None:
        return False
    graph = store.graph
    return all(
        any(not step.member.base for step in graph.codings(content.id))
        for entry in manifests.of_commit(store, commit).entries
        for content in entry.contents
    )


def predicted_tensors(store: Store, commit: CommitId) -> dict[str, tuple[str, ...]]:
    """Maps the path of each file to the names of its tensors that are stored as an optimizer step.

    To decode such a tensor, mvc computes a step of the optimizer, and adds the stored difference to
    the result. Raises UnknownRevision, StateForgotten, DamagedData.
    """
    graph = store.graph
    keys = {}
    for entry in manifests.of_commit(store, commit).entries:
        predicted = {
            i
            for i, content in enumerate(entry.contents)
            if any(step.member.coding.predicted for step in graph.codings(content.id))
        }
        if predicted:
            keys[entry.path] = tuple(t.key for t in entry.tensors if t.content in predicted)
    return keys


def _by_deployment(
    snapshot: Snapshot,
    starts: Sequence[CommitId],
    target: str,
    since: int | None,
    until: int | None,
    incomplete: list[DamagedData] | None,
) -> Iterator[Commit]:
    if since is not None and until is not None and until < since:
        return
    ancestors = commits.Ancestors(snapshot, starts)
    seen: set[CommitId] = set()
    with noting(incomplete):  # an error ends the search: ancestors of ``starts`` cannot be read
        for deployed in on_target(snapshot, target, until=until, incomplete=incomplete):
            if deployed.retracted:
                continue
            id_ = deployed.commit
            if id_ not in seen and id_ in ancestors:
                seen.add(id_)
                yield commits.placed(snapshot, id_)[1]
            if since is not None and deployed.time_ns <= since:
                return  # this version was live at ``since``


def names_by_commit(snapshot: Snapshot) -> dict[CommitId, list[str]]:
    """Maps commits to their names: HEAD, branches, tags as ``tag: NAME``, and ``REMOTE/NAME``."""
    names: dict[CommitId, list[str]] = {}
    if (tip := refs.head_if_known(snapshot).commit) is not None:
        names[tip] = [refs.HEAD]
    for before, listed in (("", refs.branches), ("tag: ", refs.tags), ("", refs.remote_refs)):
        for ref in listed(snapshot):
            names.setdefault(ref.commit, []).append(before + ref.name)
    return names


class Orphans(Struct, frozen=True):
    """The number of versions that become unreachable, and the newest of these versions."""

    newest: CommitId
    count: int


def orphans(snapshot: Snapshot, tip: CommitId, to: CommitId | None = None) -> Orphans | None:
    """Versions that become unreachable if a detached HEAD moves from ``tip`` to ``to``.

    These are ``tip`` and its ancestors that neither ``to`` nor a branch, tag or remote-tracking
    branch reaches. None if ``tip`` stays reachable.
    """
    every = (*refs.branches(snapshot), *refs.tags(snapshot), *refs.remote_refs(snapshot))
    names = {ref.commit for ref in every}
    unreachable = commits.leading_to(snapshot, [tip], names if to is None else names | {to})
    return Orphans(tip, len(unreachable)) if unreachable else None
