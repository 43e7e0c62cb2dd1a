"""Opens a file that is to be committed, and checks that it does not change meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from posixpath import normpath

from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.detect import parse_as, parse_file
from mvc.adapters.files.onnx import GraphTensor, laid_out, tensors
from mvc.adapters.parsed import ParsedFile, PlacedFile, Source, SourceFile
from mvc.adapters.state_file import StateFile
from mvc.errors import BadModelFile, MvcError, SourceChanged
from mvc.io.files import FileIdentity, FileSystem
from mvc.model.manifest import FileEntry

_GRAPHS = 8  # so many graphs in its folder are read for what they say of a file


def parse(source: Source, name: str, *, unless: Callable[[], bool] = lambda: False) -> StateFile:
    """A file by its first bytes; one of no known format is a file without tensors.

    Raises BadModelFile for a truncated model file, ``unless`` that returns true. ``name``: for
    messages, and the kind of file that its suffix promises.
    """
    return _sound(parse_file(source, name), source, name, unless)


def _sound(parsed: ParsedFile, source: Source, name: str, unless: Callable[[], bool]) -> StateFile:
    if parsed.format == "opaque":
        from mvc.adapters.files.suspicion import suspicion  # few files need it

        why = suspicion(source, name)
        if why is not None and not unless():
            raise BadModelFile(
                f"{name} is no sound model file: {why}",
                hint="write it again; to keep it as it is, add --opaque",
            )
    return StateFile(parsed)


@contextmanager
def open_file(
    fs: FileSystem,
    path: Path,
    name: str,
    *,
    strict: bool = False,
    like: FileEntry | None = None,
    unless: Callable[[], bool] = lambda: False,
) -> Iterator[StateFile]:
    """The file while it is open. Raises SourceChanged at the end if it was written to meanwhile.

    ``strict``: as ``parse``; otherwise a truncated model file is one without tensors. ``like`` is
    as for ``parse_beside``.
    """
    with fs.open_read(path) as file:
        before = file.identity()
        parsed = parse_beside(fs, path, file, name, like=like)
        yield _sound(parsed, file, name, unless) if strict else StateFile(parsed)
        after = file.identity()
    if (before.size, before.mtime_ns, before.ctime_ns) != (
        after.size,
        after.mtime_ns,
        after.ctime_ns,
    ):
        raise SourceChanged(
            f"{name} changed while it was being read",
            hint="wait until whatever writes it is done, then commit again",
        )


def parse_beside(
    fs: FileSystem, path: Path, file: Source, name: str, *, like: FileEntry | None = None
) -> ParsedFile:
    """As ``parse_file``. Of an opaque file, ONNX graphs in its folder may know the tensors.

    A file with the bytes of ``like``, a stored one to compare it with, has that one's tensors. What
    graphs said of ``like`` counts before.
    """
    parsed = parse_file(file, name, like)
    if parsed.format == "opaque":
        with suppress(MvcError):
            if like is not None and (like.format, like.size) == ("onnx", parsed.size):
                return parse_as(like, file, name)
            graphs = _graphs(fs, path.parent, fs.stat(path.parent))
            graphs = sorted(graphs, key=lambda graph: not path.name.startswith(graph.stem))
            maps = (_external(fs, graph, fs.stat(graph)) for graph in graphs[:_GRAPHS])
            there = (each for found in maps for each in found.get(path.name, ()))
            if (parts := laid_out(there, parsed.size)).contents:
                parsed = SourceFile(file, name, parsed.size, parts)
    if like is not None and like.size == parsed.size and _layout(parsed) != _layout(like):
        from mvc.adapters.hashing import hash_file

        with suppress(MvcError):  # what an earlier mvc read otherwise is no change
            stored = parse_as(like, file, name)
            if hash_file(stored, name).content_id == like.content_id:
                return stored
    return parsed


def _layout(file: PlacedFile) -> tuple[object, ...]:
    contents = [(content.offset, content.spec) for content in file.contents]
    return file.format, contents, [(tensor.key, tensor.content) for tensor in file.tensors]


def external_files(fs: FileSystem, graph: Path) -> dict[Path, FileIdentity]:
    """The files in the folder of an ONNX graph in which its tensors lie."""
    names = _external(fs, graph, fs.stat(graph)).keys() & set(fs.list(graph.parent))
    found = {graph.with_name(name): fs.stat(graph.with_name(name)) for name in sorted(names)}
    return {path: identity for path, identity in found.items() if identity and identity.is_file}


@lru_cache(maxsize=16)
def _graphs(fs: FileSystem, folder: Path, _now: FileIdentity | None) -> list[Path]:
    """``_now``: the folder as it is, so that it is listed again when it has changed."""
    return [folder / name for name in fs.list(folder) if name.lower().endswith(".onnx")]


@lru_cache(maxsize=_GRAPHS)
def _external(
    fs: FileSystem, graph: Path, _now: FileIdentity | None
) -> Mapping[str, Sequence[GraphTensor]]:
    """The tensors of a graph that lie in other files, by the names of these."""
    found = defaultdict[str, list[GraphTensor]](list)
    with suppress(MvcError, LookupError), fs.open_read(graph) as file:
        for each in filter(attrgetter("location"), tensors(FileCursor(file))):
            found[normpath(each.location)].append(each)
    return found
