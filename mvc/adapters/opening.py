"""Opens a file for a commit, and checks that the file does not change while it is read."""

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

_GRAPHS = 8  # at most so many ONNX graphs are read from a folder


def parse(source: Source, name: str, *, unless: Callable[[], bool] = lambda: False) -> StateFile:
    """Parses a file, whose first bytes show the format. A file of unknown format has no tensors.

    If the file has no tensors, but seems to be a truncated or wrong model file (``suspicion``),
    calls ``unless``. If the result is false, raises BadModelFile. ``name``: the name for messages.
    The suffix of ``name`` shows the expected format.
    """
    return _checked(parse_file(source, name), source, name, unless)


def _checked(
    parsed: ParsedFile, source: Source, name: str, unless: Callable[[], bool]
) -> StateFile:
    if parsed.format == "opaque":
        from mvc.adapters.files.suspicion import suspicion

        why = suspicion(source, name)
        if why is not None and not unless():
            raise BadModelFile(
                f"{name} is not a valid model file: {why}",
                hint="write it again; to commit it unchanged, add --opaque",
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
    """Opens and parses a file. Raises SourceChanged at the end if the file was modified meanwhile.

    ``strict``: raise BadModelFile for a truncated or wrong model file, as ``parse`` does with
    ``unless``. Otherwise such a file has no tensors. ``like``: see ``parse_beside``.
    """
    with fs.open_read(path) as file:
        identity_before = file.identity()
        parsed = parse_beside(fs, path, file, name, like=like)
        yield _checked(parsed, file, name, unless) if strict else StateFile(parsed)
        identity_after = file.identity()
    if (identity_before.size, identity_before.mtime_ns, identity_before.ctime_ns) != (
        identity_after.size,
        identity_after.mtime_ns,
        identity_after.ctime_ns,
    ):
        raise SourceChanged(
            f"{name} changed while it was being read",
            hint="wait until its writer is done, then commit again",
        )


def parse_beside(
    fs: FileSystem, path: Path, file: Source, name: str, *, like: FileEntry | None = None
) -> ParsedFile:
    """Parses a file by its format, or by an ONNX graph in the same folder.

    If the format is unknown, the file may have the external data of an ONNX graph. Then the graph
    names the file's tensors. ``like``: a stored file. If the two files have the same bytes, the
    result has the tensors of ``like``, even if the graph was changed meanwhile. For external data,
    the same size suffices.
    """
    parsed = parse_file(file, name, like)
    if parsed.format == "opaque":
        with suppress(MvcError):
            if like is not None and (like.format, like.size) == ("onnx", parsed.size):
                return parse_as(like, file, name)
            graphs = _graphs(fs, path.parent, fs.stat(path.parent))
            graphs = sorted(graphs, key=lambda graph: not path.name.startswith(graph.stem))
            maps = (_external(fs, graph, fs.stat(graph)) for graph in graphs[:_GRAPHS])
            external = (tensor for by_file in maps for tensor in by_file.get(path.name, ()))
            if (parts := laid_out(external, parsed.size)).contents:
                parsed = SourceFile(file, name, parsed.size, parts)
    if like is not None and like.size == parsed.size and _layout(parsed) != _layout(like):
        from mvc.adapters.hashing import hash_file

        with suppress(MvcError):  # another release of mvc may have stored ``like``
            stored = parse_as(like, file, name)
            if hash_file(stored, name).content_id == like.content_id:
                return stored
    return parsed


def _layout(file: PlacedFile) -> tuple[object, ...]:
    contents = [(content.offset, content.spec) for content in file.contents]
    return file.format, contents, [(tensor.key, tensor.content) for tensor in file.tensors]


def external_files(fs: FileSystem, graph: Path) -> dict[Path, FileIdentity]:
    """The files next to an ONNX graph that have the graph's external tensors."""
    names = _external(fs, graph, fs.stat(graph)).keys() & set(fs.list(graph.parent))
    files = {graph.with_name(name): fs.stat(graph.with_name(name)) for name in sorted(names)}
    return {path: identity for path, identity in files.items() if identity and identity.is_file}


@lru_cache(maxsize=16)
def _graphs(fs: FileSystem, folder: Path, _now: FileIdentity | None) -> list[Path]:
    """The ONNX graphs in a folder.

    ``_now``: the folder's identity, such as its modification time. The cache uses this argument as
    a key, so that a changed folder is listed again.
    """
    return [folder / name for name in fs.list(folder) if name.lower().endswith(".onnx")]


@lru_cache(maxsize=_GRAPHS)
def _external(
    fs: FileSystem, graph: Path, _now: FileIdentity | None
) -> Mapping[str, Sequence[GraphTensor]]:
    """Maps the names of external files to the tensors of a graph that are in these files.

    ``_now``: the identity of the graph's file, as in ``_graphs``.
    """
    by_name = defaultdict[str, list[GraphTensor]](list)
    with suppress(MvcError, LookupError), fs.open_read(graph) as file:
        for tensor in filter(attrgetter("location"), tensors(FileCursor(file))):
            by_name[normpath(tensor.location)].append(tensor)
    return by_name
