"""Sources of a diff: a version, the working tree, or one file on disk.

A source has its files as entries, that is as hashes, and reads a file's bytes only to compute
distances. All bytes it returns are verified against their hash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mvc.errors import DamagedData, InvalidName, MvcError, SourceChanged, UnknownPath
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.model.manifest import FileEntry, LogicalTensor
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.worktree import worktree

__all__ = ["DiffSource", "Read", "file", "is_under", "tensor_pieces", "version", "working_folder"]

Read = Callable[[int, int, memoryview], None]
"""Fills a buffer from byte ``start`` of content ``i``: (i, start, buffer)."""


@dataclass(frozen=True)
class DiffSource:
    """One side of a diff.

    ``open`` reads a file of the source; ``wrong`` is the error if its bytes do not match their
    hash. ``single``: the source is one file, which may be compared with a path of another name.
    ``from_head``: paths of the working tree whose entries are those of HEAD.
    """

    label: str
    entries: Mapping[str, FileEntry]
    open: Callable[[FileEntry], AbstractContextManager[Read]]
    wrong: Callable[[FileEntry], MvcError]
    single: bool = False
    from_head: tuple[str, ...] = ()


def version(
    context: Context, commit: CommitId | None, label: str, paths: Collection[str] = ()
) -> DiffSource:
    """The files of a commit; no files if ``commit`` is None."""
    manifest = manifests.of_commit(context, commit)
    recovery = context.store.recovery

    @contextmanager
    def opened(entry: FileEntry) -> Iterator[Read]:
        def read(i: int, start: int, out: memoryview) -> None:
            recovery.piece(entry.contents[i].id, start, out)

        yield read

    def wrong(entry: FileEntry) -> MvcError:
        return DamagedData(
            f"a tensor of {entry.path} in {label} does not match its hash after decoding",
            hint="run 'mvc fsck' to see which versions it touches",
        )

    chosen = {e.path: e for e in manifest.entries if is_under(e.path, paths)}
    return DiffSource(label, chosen, opened, wrong)


def working_folder(context: Context, head: DiffSource, paths: Collection[str]) -> DiffSource:
    """HEAD's paths that are files in the working tree now.

    A Python state without a file equals HEAD, as it does for commit.
    """
    found, from_head = {}, []
    for name, entry in sorted(head.entries.items()):
        if not is_under(name, paths):
            continue
        identity = context.store.fs.stat(context.root / name)
        if identity is not None and identity.is_file:
            found[name] = worktree.entry_of(context, name)
        elif identity is None and worktree.is_python_state(entry):
            from_head.append(name)
    disk = _on_disk(context, "the working folder", found, {}, single=False)
    if not from_head:
        return disk

    def of(entry: FileEntry) -> DiffSource:
        return disk if entry.path in found else head

    return DiffSource(
        disk.label if found else head.label,
        found | {name: head.entries[name] for name in from_head},
        lambda entry: of(entry).open(entry),
        lambda entry: of(entry).wrong(entry),
        from_head=tuple(from_head),
    )


def file(context: Context, path: Path, label: str) -> DiffSource:
    """One file on disk. Inside the repository it has the name of its tracked path."""
    fs = context.store.fs
    try:
        name = worktree.tracked_name(context.root, path, fs.cwd(), fs=fs)
    except InvalidName:
        name = path.name
    entry = worktree.entry_at(context, path, name)
    return _on_disk(context, label, {name: entry}, {name: path}, single=True)


def _on_disk(
    context: Context,
    label: str,
    entries: Mapping[str, FileEntry],
    places: Mapping[str, Path],
    *,
    single: bool,
) -> DiffSource:
    from mvc.repo.content.sources import open_file

    def wrong(entry: FileEntry) -> MvcError:
        return SourceChanged(
            f"{entry.path} changed while it was being compared",
            hint="wait until whatever writes it is done, then try again",
        )

    @contextmanager
    def opened(entry: FileEntry) -> Iterator[Read]:
        path = places.get(entry.path, context.root / entry.path)
        if context.store.fs.stat(path) is None:
            raise wrong(entry)
        with open_file(context.store.fs, path, entry.path) as parsed:
            layout = [(c.offset, c.spec) for c in parsed.contents]
            if layout != [(c.offset, c.spec) for c in entry.contents]:
                raise wrong(entry)
            yield parsed.read

    return DiffSource(label, entries, opened, wrong, single)


def is_under(path: str, chosen: Collection[str]) -> bool:
    """Whether ``path`` is one of ``chosen`` or inside one; true if none is chosen, or '' or '.'."""
    return not chosen or any(
        c in {"", "."} or path == c or path.startswith(c.rstrip("/") + "/") for c in chosen
    )


def tensor_pieces(
    side: DiffSource, read: Read, entry: FileEntry, tensor: LogicalTensor, buffer: memoryview
) -> Iterator[memoryview]:
    """A tensor's row-major bytes, piece by piece in ``buffer``.

    Raises the error of ``side.wrong`` at the end if they do not match their hash. For a view, the
    whole storage is read first.
    """
    from mvc.adapters.views import extract
    from mvc.model.hashing import BlobHasher
    from mvc.repo.content.hashing import pieces

    hasher = BlobHasher(tensor.spec, parallel=True)
    spec = entry.contents[tensor.content].spec
    whole = memoryview(bytearray(spec.nbytes)) if tensor.view is not None else None
    if whole is not None and tensor.view is not None:
        for start, length in pieces(spec):
            read(tensor.content, start, whole[start : start + length])
        whole = extract(whole, tensor.spec, tensor.view)
    for start, length in pieces(tensor.spec):
        if whole is None:
            part = buffer[:length]
            read(tensor.content, start, part)
        else:
            part = whole[start : start + length]
        hasher.update(part)
        yield part
    if hasher.done() != tensor.id:
        raise side.wrong(entry)


def buffer_size(entries: Collection[FileEntry]) -> int:
    """Size in bytes of the largest piece of these files' contents."""
    return min(PIECE, max((c.spec.nbytes for e in entries for c in e.contents), default=0))


def only_state(side: DiffSource) -> FileEntry:
    """The source's only file with tensors, or its only file; else raises UnknownPath."""
    states = [e for e in side.entries.values() if e.tensors] or list(side.entries.values())
    if len(states) == 1:
        return states[0]
    names = ", ".join(e.path for e in states[:10]) or "no files"
    raise UnknownPath(
        f"{side.label} has no path of this name and not exactly one state: {names}",
        hint="give the file the name of the path it is to be compared with",
    )
