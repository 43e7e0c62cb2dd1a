"""Whether what a version holds can be read: every command asks this here.

The state of a version is kept or forgotten. Of a state that is kept, the contents of a file are
stored, or made again by a recipe for as long as a block runs, or given up and gone. The newest mark
of a version says whether it gave up the weights at a path, or stored them again; its other files,
its manifest and what it carries are stored in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from mvc.errors import DamagedData, StateForgotten, WeightsDropped
from mvc.ids import CommitId, ManifestId
from mvc.limits import PIECE
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.context import Context
from mvc.repo.lookup import commits
from mvc.store.journal.entries import Forgotten, Weights
from mvc.store.journal.frames import Recorded
from mvc.times import format_time

GONE = "its commit is still shown by 'mvc log'; what it held is gone"


class Dropped(Struct, frozen=True):
    """The weights at ``path`` were given up at ``time_ns``; a replay takes about ``seconds``, 0 if
    nobody knows: the training was not recorded while it ran, and no replay has proven the recipe.

    ``proven_ns``: when a replay last made them, None if none did; ``where`` it ran. ``stored``:
    they can still be read, because another version has them or gc has not run.
    """

    commit: CommitId
    path: str
    seconds: float
    time_ns: int
    proven_ns: int | None
    where: str
    stored: bool = False

    def __str__(self) -> str:
        """``recoverable by retraining (12 s, proven on ...)``."""
        proven = "not proven"
        if self.proven_ns is not None:
            proven = f"proven {format_time(self.proven_ns, precise=False)}"
        there = ", still stored" if self.stored else ""
        taken = f"{self.seconds:.3g} s, " if self.seconds else ""
        return f"recoverable by retraining ({taken}{proven}){there}"


def forgotten(context: Context, id_: CommitId) -> Forgotten | None:
    """The mark of a version whose state was forgotten, and is not here again."""
    recorded = context.store.snapshot.forgotten(id_)
    marks = () if recorded is None else recorded.entry.forgotten
    return max((m for m in marks if m.commit == id_), key=lambda m: m.named, default=None)


def forgotten_ns(context: Context, id_: CommitId) -> int | None:
    """When the state of a version was forgotten, in ns since 1970; None if it is stored."""
    recorded = context.store.snapshot.forgotten(id_)
    return None if recorded is None else recorded.entry.time_ns


def is_absent(context: Context, id_: CommitId) -> bool:
    """Whether the state of a version never came here: it was fetched without, not forgotten."""
    recorded = context.store.snapshot.forgotten(id_)
    return recorded is not None and id_ in recorded.entry.absent


def check_kept(context: Context, id_: CommitId) -> None:
    """Raises StateForgotten if the state of a version was forgotten, or never came here."""
    recorded, mark = context.store.snapshot.forgotten(id_), forgotten(context, id_)
    if recorded is None or mark is None:
        return
    date = format_time(recorded.entry.time_ns, precise=False)
    absent = is_absent(context, id_)
    what = f"is not here: it did not come along on {date}" if absent else f"was forgotten on {date}"
    error = StateForgotten(f"the state of version {id_.short} {what}", hint=GONE)
    if not mark.named:
        error.absent = id_
    raise error


def dropped_paths(marks: Iterable[Weights]) -> dict[CommitId, str]:
    """The path that each version gave up, by marks from the oldest to the newest."""
    newest = {mark.commit: mark for mark in marks if mark.kind != "proven"}
    return {id_: mark.path for id_, mark in newest.items() if mark.kind == "dropped"}


def given_up(
    paths: Mapping[CommitId, str], states: Iterable[tuple[CommitId, ManifestId]]
) -> dict[ManifestId, set[str]]:
    """The paths that every holder of a manifest has given up, by manifest.

    ``paths``: by version what it gave up. ``states``: the versions that count.
    """
    found: dict[ManifestId, set[str]] = {}
    whole: set[ManifestId] = set()
    for id_, manifest in states if paths else ():
        if id_ in paths:
            found.setdefault(manifest, set()).add(paths[id_])
        else:
            whole.add(manifest)
    return {manifest: each for manifest, each in found.items() if manifest not in whole}


def all_dropped(context: Context) -> dict[CommitId, Dropped]:
    """Every version without its weights. Marks may be left of versions that were collected."""
    snapshot = context.fresh()
    ids = dropped_paths(mark for _, mark in snapshot.weights())
    found = [dropped(context, id_) for id_ in ids if commits.find(snapshot, id_)]
    return {each.commit: each for each in found if each is not None}


def dropped(context: Context, commit: CommitId, path: str | None = None) -> Dropped | None:
    """What is known of a version that gave up its weights, those at ``path`` if one is named.

    None if it has them.
    """
    marks = context.store.snapshot.weights(commit)
    paths = dropped_paths(mark for _, mark in marks).values()
    if not paths or path not in {None, *paths}:
        return None
    recorded, mark = next((r, m) for r, m in reversed(marks) if m.kind == "dropped")
    proven = _proof(marks)
    return Dropped(
        commit,
        mark.path,
        seconds=(mark if proven is None else proven[1]).milliseconds / 1000,
        time_ns=recorded.entry.time_ns,
        proven_ns=None if proven is None else proven[0],
        where="" if proven is None else proven[1].where,
        stored=_is_there(context, commit, mark.path),
    )


def proof(context: Context, commit: CommitId, path: str) -> tuple[int, Weights] | None:
    """When a replay last made the file ``path`` of a version, in ns since 1970, and its mark."""
    marks = context.store.snapshot.weights(commit)
    return _proof((recorded, mark) for recorded, mark in marks if mark.path == path)


def _proof(marks: Iterable[tuple[Recorded, Weights]]) -> tuple[int, Weights] | None:
    proven = [(recorded.entry.time_ns, mark) for recorded, mark in marks if mark.where]
    return proven[-1] if proven else None


def is_stored(context: Context, entry: FileEntry) -> bool:
    """Whether deltas and full records lead to every content of a file."""
    from mvc.store.graph.plan import plan  # light commands need none

    graph = context.store.graph
    try:
        for content in entry.contents:
            for start in range(0, max(content.spec.nbytes, 1), PIECE):
                plan(graph, [content.id], start)
    except DamagedData:
        return False
    return True


def _is_there(context: Context, commit: CommitId, path: str) -> bool:
    if forgotten_ns(context, commit) is not None:
        return False
    try:
        manifest = Manifest.decode(
            context.store.recovery.manifest(commits.get(context, commit).manifest)
        )
        return is_stored(context, manifest.by_path[path])
    except (DamagedData, KeyError):
        return False


def check_available(
    context: Context, commit: CommitId, entries: Iterable[FileEntry], *, stored: bool = False
) -> None:
    """Raises WeightsDropped if one of a version's files was given up and nothing leads to it.

    ``stored``: also if it was made again only for now, and is not stored (``Store.made``).
    """
    gone = dropped(context, commit)
    if gone is None:
        return
    for entry in entries:
        if entry.path != gone.path or is_stored(context, entry):
            continue
        if not stored and all(content.id in context.store.made for content in entry.contents):
            continue
        raise dropped_error(commit, gone)


def dropped_error(commit: CommitId, gone: Dropped) -> WeightsDropped:
    """The error for what needs the weights of this version."""
    when = format_time(gone.time_ns, precise=False)
    return WeightsDropped(
        f"the weights of version {commit.short} were given up on {when}; a training"
        + (f" of about {gone.seconds:.3g} s" if gone.seconds else "")
        + " makes them again",
        hint=f"'mvc retrain {commit.short} --trust-code' trains and stores them again; in Python, "
        f"'with mvc.retraining(repo, {commit.short!r}, trust=True):' reads them once",
    )
