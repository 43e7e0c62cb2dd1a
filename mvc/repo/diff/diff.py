"""diff: two versions, or a version and files on disk, compared tensor by tensor.

Hashes decide what differs (``mvc.repo.content.compare``). Only tensors that differ are read,
piece by piece, to compute the distances (``mvc.repo.diff.distance``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from mvc.errors import UnknownPath, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.model.manifest import FileEntry
from mvc.repo.content.compare import FileDiff, TensorDiff, compare_files
from mvc.repo.context import Context, Progress
from mvc.repo.diff import sources
from mvc.repo.diff.sources import DiffSource
from mvc.repo.display import diff_rows, html_table, text_table
from mvc.repo.lookup.refs import head, staged_removals
from mvc.repo.lookup.revisions import resolve

__all__ = ["Diff", "FileDiff", "TensorDiff", "diff"]

_Pair = tuple[str, FileEntry | None, FileEntry | None]


@dataclass(frozen=True, repr=False)
class Diff:
    """``a`` names the old side, ``b`` the new one; ``files`` lists all files by path.

    ``from_head``: Python states without a file; for them the working tree is taken to equal HEAD.
    """

    a: str
    b: str
    files: tuple[FileDiff, ...]
    comparisons: int
    from_head: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rows = diff_rows(self.files)
        return f"<Diff {self.a} -> {self.b}: {len(rows)} of {len(self.files)} files differ>" + (
            f"\n{text_table(rows)}" if rows else ""
        )

    def _repr_html_(self) -> str:
        names = ("path", "kind", "tensors that differ")
        return html_table(names, diff_rows(self.files), f"{self.a} -> {self.b}")


def diff(
    context: Context,
    a: str | CommitId | None = None,
    b: str | CommitId | None = None,
    paths: Sequence[str] = (),
    *,
    progress: Progress | None = None,
) -> Diff:
    """Compares ``a`` (default HEAD) with ``b`` (default: the tracked files as they are now).

    Each is a revision, or else a file on disk. A file is compared with the path of the same name
    on the other side, or with its only state; a file alone is compared with HEAD. ``paths``
    limits the comparison to tracked files or folders. A Python state that was never written as a
    file equals HEAD. Raises UnknownRevision if ``a`` or ``b`` is neither a revision nor a file,
    UnknownPath for paths that neither side has, WrongUsage for a file with ``paths``.
    """
    context.fresh()
    old, new = _sides(context, a, b, paths)
    if paths and (old.single or new.single):
        raise WrongUsage("a file is compared by itself: name no further paths")
    for path in paths:
        if not any(sources.is_under(p, [path]) for p in (*old.entries, *new.entries)):
            raise UnknownPath(f"neither side has the path {path}")
    pairs = list(_pairs(old, new))
    found = [compare_files(x, y, path) for path, x, y in pairs]
    found = _renamed(pairs, found)
    distances = _Distances(old, new, progress)
    files = distances.fill(found)
    comparisons = sum(f.comparisons for f in files)
    return Diff(old.label, new.label, tuple(files), comparisons, new.from_head)


def _sides(
    context: Context, a: str | CommitId | None, b: str | CommitId | None, paths: Sequence[str]
) -> tuple[DiffSource, DiffSource]:
    tip = head(context).commit
    if a is not None and b is not None:
        return _side(context, a, paths), _side(context, b, paths)
    first = sources.version(context, tip, "HEAD", paths) if a is None else _side(context, a, paths)
    if first.single:
        return sources.version(context, tip, "HEAD"), first
    now = sources.version(context, tip, "HEAD")
    left_out = set(staged_removals(context))
    tracked = {path: entry for path, entry in now.entries.items() if path not in left_out}
    return first, sources.working_folder(context, replace(now, entries=tracked), paths)


def _side(context: Context, rev: str | CommitId, paths: Sequence[str]) -> DiffSource:
    text = str(rev)
    try:
        return sources.version(context, resolve(context, rev), text, paths)
    except UnknownRevision as error:
        if isinstance(rev, CommitId):
            raise
        fs = context.store.fs
        path = fs.cwd() / Path(text)
        identity = fs.stat(path)
        if identity is None or not identity.is_file:
            raise UnknownRevision(
                f"{error.message}, and no file of this name", hint=error.hint
            ) from None
        return sources.file(context, path, text)


def _pairs(old: DiffSource, new: DiffSource) -> Iterator[_Pair]:
    """Pairs of files to compare, with their path."""
    if old.single or new.single:
        x, y = _entry_like(old, new), _entry_like(new, old)
        yield (x if new.single and not old.single else y).path, x, y
        return
    for path in sorted({*old.entries, *new.entries}, key=str.encode):
        yield path, old.entries.get(path), new.entries.get(path)


def _entry_like(side: DiffSource, other: DiffSource) -> FileEntry:
    """The entry of ``side`` that the other side's single file is compared with."""
    if not side.single:
        for name in other.entries:
            if name in side.entries:
                return side.entries[name]
    return sources.only_state(side)


def _renamed(pairs: Sequence[_Pair], found: Sequence[FileDiff]) -> list[FileDiff]:
    """Joins a removed path and an added path with the same bytes."""
    gone = {x.content_id: i for i, (_, x, y) in enumerate(pairs) if x is not None and y is None}
    result: list[FileDiff | None] = list(found)
    for i, (path, x, y) in enumerate(pairs):
        if x is None and y is not None and (at := gone.pop(y.content_id, None)) is not None:
            origin = pairs[at]
            same = compare_files(origin[1], y, path)
            result[i] = replace(same, kind="renamed", renamed_from=origin[0])
            result[at] = None
    return [f for f in result if f is not None]


class _Distances:
    """Reads the tensors that differ and computes their distances."""

    def __init__(self, old: DiffSource, new: DiffSource, progress: Progress | None) -> None:
        self._old = old
        self._new = new
        self._progress = progress
        self._done = self._total = 0
        self._buffers = memoryview(bytearray()), memoryview(bytearray())

    def fill(self, files: Sequence[FileDiff]) -> list[FileDiff]:
        wanted = [t for f in files for t in f.tensors if _comparable(t)]
        self._total = sum(t.new_spec.nbytes for t in wanted if t.new_spec is not None)
        if wanted:
            sizes = (sources.buffer_size(side.entries.values()) for side in (self._old, self._new))
            first, second = (memoryview(bytearray(size)) for size in sizes)
            self._buffers = first, second
        return [self._file(f) if any(map(_comparable, f.tensors)) else f for f in files]

    def _file(self, found: FileDiff) -> FileDiff:
        x, y = self._entry(self._old, self._new, found), self._entry(self._new, self._old, found)
        before = {t.key: t for t in x.tensors}
        after = {t.key: t for t in y.tensors}
        with ExitStack() as stack:
            reads = stack.enter_context(self._old.open(x)), stack.enter_context(self._new.open(y))
            rows = []
            for row in found.tensors:
                if not _comparable(row):
                    rows.append(row)
                    continue
                u, v = before[row.renamed_from or row.key], after[row.key]
                rows.append(
                    _measured(
                        row,
                        sources.tensor_pieces(self._old, reads[0], x, u, self._buffers[0]),
                        sources.tensor_pieces(self._new, reads[1], y, v, self._buffers[1]),
                    )
                )
                self._done += v.spec.nbytes
                if self._progress is not None:
                    self._progress(self._done, self._total, found.path)
        return replace(found, tensors=tuple(rows))

    @staticmethod
    def _entry(side: DiffSource, other: DiffSource, found: FileDiff) -> FileEntry:
        if side.single or other.single:
            return _entry_like(side, other)
        return side.entries[found.path]


def _comparable(row: TensorDiff) -> bool:
    """Whether the distances are defined and not known from the hashes."""
    known = row.changed_share is not None
    return (
        not known
        and row.old_spec is not None
        and row.new_spec is not None
        and row.old_spec.shape == row.new_spec.shape
    )


def _measured(row: TensorDiff, old: Iterator[memoryview], new: Iterator[memoryview]) -> TensorDiff:
    from mvc.repo.diff.distance import measure

    if row.old_spec is None or row.new_spec is None:
        raise ValueError("only a tensor that both sides have can be measured")
    found = measure(row.old_spec.dtype, old, row.new_spec.dtype, new)
    return replace(
        row,
        changed_share=found.changed_share,
        l2=found.l2,
        max_abs=found.max_abs,
        cosine=found.cosine,
        nonfinite=found.nonfinite,
    )
