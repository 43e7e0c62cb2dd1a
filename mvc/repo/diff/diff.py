"""Diff: compares two versions, or a version and files on disk, tensor by tensor.

Hashes decide what differs (``mvc.repo.content.compare``). Only tensors that differ are read, to
compute their distances (``mvc.repo.diff.distance``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from mvc.adapters.files.facts import file_facts
from mvc.errors import (
    DamagedData,
    InvalidName,
    MvcError,
    SourceChanged,
    UnknownPath,
    UnknownRevision,
    WeightsDropped,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, LogicalTensor
from mvc.names import is_under
from mvc.repo.content.compare import FileDiff, Pair, TensorDiff, compare_paths
from mvc.repo.content.contents import skeleton_of
from mvc.repo.content.relation import Relation, models, relation
from mvc.repo.lookup import commits, manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import BRANCH, HEAD, head
from mvc.repo.revisions import Rev, id_or_text, resolve
from mvc.repo.statements.annotations import Annotations
from mvc.repo.worktree import worktree
from mvc.store.store import Store
from mvc.text import text_table
from mvc.types import Counted, Progress

if TYPE_CHECKING:
    from mvc.repo.diff.distance import Distance

Read = Callable[[int, int, memoryview], None]
"""``read(i, start, buffer)`` fills ``buffer`` with the bytes of content ``i`` from ``start`` on."""

_V = TypeVar("_V")


class Diff(Struct, frozen=True):
    """``a``, ``b``: names of the old and the new side. ``files``: all files, sorted by path.

    ``from_head``: paths of states that were committed from Python, or imported, and were never
    written to the working folder. These paths count as equal to HEAD. ``metrics``, ``params``: map
    names to (old value, new value), if the two differ. A missing value is None. ``relations``: maps
    the path of each model of the new side to its relation to the old side. ``unmeasured``: maps
    paths of files whose weights were dropped to a message. Their distances are unknown.
    """

    a: str
    b: str
    files: tuple[FileDiff, ...]
    comparisons: int
    from_head: tuple[str, ...] = ()
    metrics: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    params: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    relations: Mapping[str, Relation] = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows = _rows(self.files)
        return f"<Diff {self.a} -> {self.b}: {len(rows)} of {len(self.files)} files differ>" + (
            f"\n{text_table(rows)}" if rows else ""
        )


def _rows(files: Iterable[FileDiff]) -> list[Sequence[str]]:
    """For each file that differs: path, kind, and how many tensors of the file differ."""
    rows: list[Sequence[str]] = []
    for file in files:
        if file.kind != "unchanged":
            old = f" (was {file.renamed_from})" if file.renamed_from is not None else ""
            differ = f"{file.changed_tensors:,} of {len(file.tensors):,}"
            rows.append((file.path + old, file.kind, differ))
    return rows


def diff(
    store: Store,
    a: Rev | None = None,
    b: Rev | None = None,
    paths: Sequence[str] = (),
    *,
    progress: Progress | None = None,
) -> Diff:
    """Compares ``a`` (default HEAD) with ``b`` (default: the tracked files on disk).

    ``a`` and ``b`` are revisions, files or folders on disk. If ``a`` is on disk and ``b`` is
    missing, ``a`` is compared with HEAD. A file is compared with the path of the same name on the
    other side. If there is no such path, the file is compared with the only state of the other
    side. ``paths``: compare only these paths. A state committed from Python or an imported file
    that was never written to disk counts as equal to HEAD. Raises UnknownRevision if ``a`` or ``b``
    is neither a revision nor on disk; UnknownPath if neither side has one of ``paths``; WrongUsage
    if a file is compared and ``paths`` is not empty.
    """
    old, new = _sides(store, a, b, paths)
    if paths and (old.single or new.single):
        raise WrongUsage("a file is compared as a whole: name no paths after it")
    for path in paths:
        if not any(is_under(p, [path]) for p in (*old.entries, *new.entries)):
            raise UnknownPath(f"neither side has the path {path}")
    pairs = list(_pairs(old, new))
    changed = compare_paths(pairs)
    unmeasured: dict[str, str] = {}
    files = tuple(
        _with_distances(old, new, pairs, changed, unmeasured=unmeasured, progress=progress)
    )
    metrics, params = {}, {}
    if old.commit is not None and new.commit is not None:
        annotations, sides = Annotations(store.snapshot), (old.commit, new.commit)
        (old_metrics, old_params), (new_metrics, new_params) = map(annotations.values, sides)
        metrics = _differing(old_metrics, new_metrics)
        params = _differing(old_params, new_params)
    return Diff(
        old.label,
        new.label,
        files,
        sum(file.comparisons for file in files),
        from_head=new.from_head,
        metrics=metrics,
        params=params,
        relations=_relations(pairs),
        unmeasured=unmeasured,
    )


def _relations(pairs: Sequence[Pair]) -> dict[str, Relation]:
    """Maps the path of each model of the new side to its relation to the models of the old side."""
    bases = models(old for _, old, _ in pairs if old is not None)
    new = {id(entry) for entry in models(new for _, _, new in pairs if new is not None)}
    return {path: relation(y, bases) for path, _, y in pairs if y is not None and id(y) in new}


def _differing(
    old: Mapping[str, _V], new: Mapping[str, _V]
) -> dict[str, tuple[_V | None, _V | None]]:
    pairs = {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})}
    return {name: (a, b) for name, (a, b) in pairs.items() if repr(a) != repr(b)}  # NaN equals NaN


class DiffSource(Struct, frozen=True):
    """One side of a diff: a version, the working folder, or a file or folder on disk.

    ``label``: the name of the side in the output. ``places``: maps paths in ``entries`` to files on
    disk. All other files are decoded from the repository. ``single``: the side is one file, which
    may be compared with a path of another name. ``on_disk``: the side is a file or folder that the
    caller named. ``from_head``: paths that count as equal to HEAD. ``commit``: the commit of
    the version.
    """

    store: Store
    label: str
    entries: Mapping[str, FileEntry]
    places: Mapping[str, Path] = field(default_factory=dict)
    single: bool = False
    on_disk: bool = False
    from_head: tuple[str, ...] = ()
    commit: Commit | None = None

    @contextmanager
    def open(self, entry: FileEntry) -> Iterator[tuple[Read, Callable[[], bytes]]]:
        """Yields two functions, which read the contents and the skeleton of a file.

        Contents are the bytes of tensors. The skeleton is all other bytes. Raises SourceChanged if
        the file on disk has changed.
        """
        from mvc.adapters.opening import open_file

        store = self.store
        path = self.places.get(entry.path)
        if path is None:
            if self.commit is not None:
                check_available(self.store, self.commit.id, [entry])

            def read(i: int, start: int, out: memoryview) -> None:
                store.recovery.piece(entry.contents[i].id, start, out)

            yield read, partial(skeleton_of, store.recovery, entry)
            return
        if store.fs.stat(path) is None:
            raise self.wrong(entry)
        with open_file(store.fs, path, entry.path, like=entry) as file:
            parsed = file.parsed
            layout = [(c.offset, c.spec) for c in parsed.contents]
            if layout != [(c.offset, c.spec) for c in entry.contents]:
                raise self.wrong(entry)
            yield parsed.read, parsed.skeleton

    def types(self, entry: FileEntry | None) -> Mapping[str, str]:
        """Maps keys of quantised tensors of a GGUF file to their types. Empty for other formats.

        Raises the errors of ``open``.
        """
        if entry is None or entry.format != "gguf":
            return {}
        with self.open(entry) as (_, skeleton):
            return file_facts(entry, skeleton).types

    def wrong(self, entry: FileEntry) -> MvcError:
        """The error for bytes that do not match their hash."""
        if entry.path in self.places:
            return SourceChanged(
                f"{entry.path} changed while it was being compared",
                hint="try again when nothing writes the file",
            )
        return DamagedData(
            f"a tensor of {entry.path} in {self.label} does not match its hash after decoding",
            hint="run 'mvc fsck' to list the affected versions",
        )

    def only_state(self) -> FileEntry:
        """The only file with tensors, or the only file; otherwise raises UnknownPath."""
        states = [e for e in self.entries.values() if e.tensors] or list(self.entries.values())
        if len(states) == 1:
            return states[0]
        names = ", ".join(e.path for e in states[:10]) or "no files"
        raise UnknownPath(
            f"{self.label} has no path of this name and not exactly one state: {names}",
            hint="rename the file to the path to compare it with",
        )

    def entry_like(self, other: DiffSource) -> FileEntry:
        """The entry with which the single file of the other side is compared."""
        if not self.single:
            for name in other.entries:
                if name in self.entries:
                    return self.entries[name]
        return self.only_state()


def _sides(
    store: Store, a: Rev | None, b: Rev | None, paths: Sequence[str]
) -> tuple[DiffSource, DiffSource]:
    tip = head(store.fresh()).commit
    if a is not None and b is not None:
        return _side(store, a, paths), _side(store, b, paths)
    first = version(store, tip, "HEAD", paths) if a is None else _side(store, a, paths)
    now = version(store, tip, "HEAD")
    if first.on_disk:
        return version(store, tip, "HEAD", paths), first
    return first, working_folder(store, now.entries, paths)


def _side(store: Store, rev: Rev, paths: Sequence[str]) -> DiffSource:
    rev = id_or_text(rev)
    text = str(rev)
    try:
        return version(store, resolve(store, rev), text, paths)
    except UnknownRevision as error:
        if isinstance(rev, CommitId):
            raise
        fs = store.fs
        path = fs.cwd() / Path(text)
        identity = fs.stat(path)
        if identity is None or not (identity.is_file or identity.is_dir):
            raise UnknownRevision(
                f"{error.message}, and no file of this name", hint=error.hint
            ) from None
        if identity.is_dir:
            return folder(store, path, text, paths)
        try:  # a file inside the repository has the name of its tracked path
            name = worktree.tracked_name(store.root, path, fs.cwd(), fs=fs)
        except InvalidName:
            name = path.name
        entry = worktree.entry_at(store.fs, path, name)
        return DiffSource(store, text, {name: entry}, {name: path}, single=True, on_disk=True)


def version(
    store: Store, commit: CommitId | None, label: str, paths: Collection[str] = ()
) -> DiffSource:
    """The files of a commit. If ``commit`` is None, there are no files."""
    entries = manifests.of_commit(store, commit).entries
    files = {e.path: e for e in entries if is_under(e.path, paths)}
    of = None if commit is None else commits.get(store.snapshot, commit)
    return DiffSource(store, label, files, commit=of)


def folder(store: Store, root: Path, label: str, paths: Collection[str]) -> DiffSource:
    """The files of a folder on disk, by name in the folder. Raises UnknownPath for a dead link."""
    disk_files = worktree.sorted_files_in(store.fs, root)
    places = {f.name: root / f.name for f in disk_files if is_under(f.name, paths)}
    entries = {name: worktree.entry_at(store.fs, place, name) for name, place in places.items()}
    return DiffSource(store, label, entries, places, on_disk=True)


def working_folder(
    store: Store, tracked: Mapping[str, FileEntry], paths: Collection[str]
) -> DiffSource:
    """The ``tracked`` paths of HEAD that are files in the working folder now.

    A state that was committed from Python and has no file counts as equal to HEAD. An imported file
    that was never checked out counts as equal to HEAD, too.
    """
    worktree.check_worktree(store)
    imported = _is_as_imported(store)
    on_disk: dict[str, FileEntry] = {}
    from_head: dict[str, FileEntry] = {}
    for name, entry in sorted(tracked.items()):
        if not is_under(name, paths):
            continue
        identity = store.fs.stat(store.root / name)
        if identity is not None and identity.is_file:
            on_disk[name] = worktree.entry_of(store, name, entry)
        elif identity is None and (imported or worktree.is_python_state(entry)):
            from_head[name] = entry
    return DiffSource(
        store,
        "HEAD" if from_head and not on_disk else "the working folder",
        on_disk | from_head,
        {name: store.root / name for name in on_disk},
        from_head=tuple(from_head),
    )


def _is_as_imported(store: Store) -> bool:
    """Whether HEAD and its branch have not moved since an import, which writes no files."""
    names = [HEAD, f"{BRANCH}{head(store.fresh()).branch}"]
    moves = [m for n in names if (m := store.snapshot.newest_ref_change(n)) is not None]
    return max(moves, key=lambda move: move.sequence).entry.operation == "import"


def _pairs(old: DiffSource, new: DiffSource) -> Iterator[Pair]:
    if old.single or new.single:
        x, y = old.entry_like(new), new.entry_like(old)
        yield (x if new.single and not old.single else y).path, x, y
        return
    for path in sorted({*old.entries, *new.entries}, key=str.encode):
        yield path, old.entries.get(path), new.entries.get(path)


def _with_distances(
    old: DiffSource,
    new: DiffSource,
    pairs: Sequence[Pair],
    differences: Sequence[FileDiff],
    unmeasured: dict[str, str],
    progress: Progress | None,
) -> Iterator[FileDiff]:
    """Reads the tensors that differ and computes their distances.

    If the weights of a file were dropped, the file gets no distances, and ``unmeasured`` says why.
    """
    wanted = [row.new_spec for file in differences for row in file.tensors if comparable(row)]
    read = Counted(progress, sum(spec.nbytes for spec in wanted if spec is not None))
    by_path = {path: (x, y) for path, x, y in pairs}
    for file in differences:
        (x, y), rows = by_path[file.path], list(filter(comparable, file.tensors))
        types: tuple[Mapping[str, str], Mapping[str, str]] = {}, {}
        measured_rows: dict[str, TensorDiff] = {}
        try:
            types = old.types(x), new.types(y)
            if rows and x is not None and y is not None:
                for row, distance in zip(rows, measured(old, x, new, y, rows=rows), strict=True):
                    known = asdict(distance)
                    if row.key in types[1]:  # quantised bytes are not numbers
                        known = {"changed_share": distance.changed_share}
                    measured_rows[row.key] = replace(row, **known)
                    read.add(0 if row.new_spec is None else row.new_spec.nbytes, file.path)
        except WeightsDropped as error:
            unmeasured[file.path] = error.message
        tensors = tuple(measured_rows.get(r.key, r) for r in file.tensors)
        yield replace(file, tensors=tensors, types=types)


def comparable(row: TensorDiff) -> bool:
    """Whether a tensor has the same shape on both sides, and its distances must be computed."""
    old, new = row.old_spec, row.new_spec
    same_shape = old is not None and new is not None and old.shape == new.shape
    return same_shape and row.changed_share is None


def measured(
    old: DiffSource, x: FileEntry, new: DiffSource, y: FileEntry, *, rows: Iterable[TensorDiff]
) -> Iterator[Distance]:
    """The distance of each tensor in ``rows`` between file ``x`` of ``old`` and ``y`` of ``new``.

    Raises WeightsDropped, DamagedData, SourceChanged.
    """
    from mvc.repo.diff.distance import distance_of

    before, after = {t.key: t for t in x.tensors}, {t.key: t for t in y.tensors}
    first, second = _buffer(x), _buffer(y)
    with old.open(x) as (read_old, _), new.open(y) as (read_new, _):
        for row in rows:
            u, v = before[row.renamed_from or row.key], after[row.key]
            yield distance_of(
                u.spec.dtype,
                tensor_pieces(old, read_old, x, u, buffer=first),
                v.spec.dtype,
                tensor_pieces(new, read_new, y, v, buffer=second),
            )


def _buffer(entry: FileEntry) -> memoryview:
    """Memory for the largest piece of a file's contents."""
    largest = max((content.spec.nbytes for content in entry.contents), default=0)
    return memoryview(bytearray(min(PIECE, largest)))


def tensor_pieces(
    side: DiffSource, read: Read, entry: FileEntry, tensor: LogicalTensor, buffer: memoryview
) -> Iterator[memoryview]:
    """A tensor's row-major bytes, piece by piece in ``buffer``.

    Raises the error of ``side.wrong`` at the end if the bytes do not match their hash. For a view
    (a strided part of a storage), the whole storage is read first.
    """
    from mvc.adapters.views import extract
    from mvc.model.hashing import pieces, verify_pieces

    whole: memoryview | None = None
    if tensor.view is not None:
        spec = entry.contents[tensor.content].spec
        storage = memoryview(bytearray(spec.nbytes))
        for start, length in pieces(spec):
            read(tensor.content, start, storage[start : start + length])
        whole = extract(storage, tensor.spec, tensor.view)

    def piece(start: int, length: int) -> memoryview:
        if whole is not None:
            return whole[start : start + length]
        read(tensor.content, start, buffer[:length])
        return buffer[:length]

    return (part for _, part in verify_pieces(tensor.id, tensor.spec, piece, side.wrong(entry)))
