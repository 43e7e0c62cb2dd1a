"""Which models came from which: along first parents, over all branches and tags.

A model is the content of one path. A version that leaves a path as it was makes no new model of
it; the names of that version count for the model that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry
from mvc.model.names import DATA
from mvc.repo.content.relation import Relation, models, relation
from mvc.repo.context import Context, noting
from mvc.repo.history.log import names_by_commit
from mvc.repo.live import live_now
from mvc.repo.lookup import availability
from mvc.repo.lookup.commits import ancestry
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.lookup.revisions import Rev, resolve
from mvc.types import Progress


class FamilyMember(Struct, frozen=True):
    """A model, and the version in which it appeared.

    ``base``: the position of the model that it was made from among the members; None for a base
    model, or for one of whose base nothing is shown. ``names``: HEAD, branches, and tags as
    ``tag: NAME``, of the versions that hold this model; ``targets``: those on which one of these
    versions is live now.
    """

    commit: Commit
    relation: Relation
    base: int | None
    names: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.relation.path


class _Models:
    """The models of a history. ``held``: by version and path which of ``members`` is there."""

    def __init__(self) -> None:
        self.members: list[FamilyMember] = []
        self.held: dict[CommitId, dict[str, int]] = {}
        # What a version that follows may be made from: the models, and which members they are.
        self._last: dict[CommitId, tuple[dict[str, FileEntry], dict[str, int]]] = {}

    def take(self, commit: Commit, entries: Iterable[FileEntry] | None) -> None:
        """Adds a version after its first parent; None if its models are not known."""
        old, held = self._last.get(commit.parents[0], ({}, {})) if commit.parents else ({}, {})
        if entries is None:
            self.held[commit.id], self._last[commit.id] = {}, (old, held)
            return
        known = {entry.path: entry for entry in models(entries)}
        now = {path: self._model(commit, entry, old, held) for path, entry in known.items()}
        self.held[commit.id], self._last[commit.id] = now, (known, now)

    def _model(
        self, commit: Commit, entry: FileEntry, old: dict[str, FileEntry], held: dict[str, int]
    ) -> int:
        """Which member a file holds: that of the version before, or a new one."""
        path = entry.path
        if path in old and entry.tensors == old[path].tensors:
            return held[path]
        related = relation(entry, old.values())
        if related.kind == "equal" and related.base_path == path:  # in another file format
            return held[path]
        base = None if related.base_path is None else held[related.base_path]
        self.members.append(FamilyMember(commit, related, base))
        return len(self.members) - 1

    def let_go(self, id_: CommitId) -> None:
        """No further version follows this one."""
        self._last.pop(id_, None)


def _names(context: Context) -> dict[CommitId, list[str]]:
    """The names of versions, without those of data sets, which are no models."""
    tag = f"tag: {DATA}"
    named = {
        id_: [name for name in names if not name.startswith(tag)]
        for id_, names in names_by_commit(context).items()
    }
    return {id_: names for id_, names in named.items() if names}


def family(
    context: Context,
    rev: Rev | None = None,
    *,
    incomplete: list[DamagedData] | None = None,
    progress: Progress | None = None,
) -> tuple[FamilyMember, ...]:
    """``Repository.family``: bases before the models made from them."""
    snapshot, names = context.fresh(), _names(context)
    start = None if rev is None else resolve(context, rev)
    if start is not None:
        availability.check_kept(context, start)
    starts = names if start is None else {**names, start: names.get(start, [])}
    history = list(ancestry(snapshot, starts, incomplete=incomplete, published=True))[::-1]
    following: dict[CommitId, int] = {}
    for commit in history:
        for parent in commit.parents[:1]:
            following[parent] = following.get(parent, 0) + 1
    stream, found = ManifestStream(context.store), _Models()
    for done, commit in enumerate(history, 1):
        entries = None
        with noting(incomplete):
            if availability.forgotten_ns(context, commit.id) is None:
                entries = stream.load(commit.manifest).entries
        found.take(commit, entries)
        for parent in commit.parents[:1]:
            following[parent] -= 1
            if not following[parent]:
                found.let_go(parent)
        if progress is not None:
            progress(done, len(history), "versions")
    named = _named(found, names, live_now(context))
    return _descendants(named, None if start is None else set(found.held[start].values()))


def _named(
    found: _Models, names: dict[CommitId, list[str]], live: dict[CommitId, list[str]]
) -> list[FamilyMember]:
    by_model: list[tuple[list[str], list[str]]] = [([], []) for _ in found.members]
    for column, known in enumerate((names, live)):
        for id_, words in known.items():
            for model in set(found.held.get(id_, {}).values()):
                by_model[model][column].extend(words)
    return [
        replace(m, names=tuple(words), targets=tuple(targets))
        for m, (words, targets) in zip(found.members, by_model, strict=True)
    ]


def _descendants(members: list[FamilyMember], roots: set[int] | None) -> tuple[FamilyMember, ...]:
    """These models and all that came from them; all members if ``roots`` is None."""
    if roots is None:
        return tuple(members)
    places: dict[int, int] = {}
    kept: list[FamilyMember] = []
    for number, member in enumerate(members):
        base = None if member.base is None else places.get(member.base)
        if base is not None or number in roots:
            places[number] = len(kept)
            kept.append(replace(member, base=base))
    return tuple(kept)
