"""The manifest of a version: a list of its files, with the tensors and the layout of each file.

The layout describes how a file is restored from stored data (docs/format.md). *Contents* are the
data of tensors, with their offsets in the file; several tensors may share one content. The
*skeleton* is all other bytes of the file, joined and stored as one content of dtype ``raw``.
*Checks* are the CRC-32 fields of a zip file, which are computed again when the file is restored.

A version may have attachments (additional files, such as a recipe). Their paths begin with
``names.ATTACHED``. Attachments are never in a working folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import PurePosixPath

from msgspec import Struct

from mvc.canonical import Reader, Writer
from mvc.errors import DamagedData, InvalidName, UnknownPath
from mvc.ids import BlobId, ManifestId, Root
from mvc.limits import (
    MAX_DIMENSIONS,
    MAX_MANIFEST,
    MAX_NAME_BYTES,
    MAX_SKELETON,
    MAX_TENSORS,
    MAX_UNFOLDED,
)
from mvc.model.hashing import digest
from mvc.model.merkle import MerkleTree, leaf
from mvc.model.tensor import DTYPES, TensorSpec, shared_spec
from mvc.names import (
    ATTACHED,
    DEFAULT_STATE,
    attached_path,
    check_key,
    check_path,
    encode_text,
    printable,
    training_path,
)
from mvc.types import FIRST_RELEASE as FIRST

_TAG = b"mvc.manifest.1"
_TAG_ENTRY = b"mvc.entry.1"
FORMATS = {
    "opaque": FIRST, "safetensors": FIRST, "torch": FIRST, "npz": FIRST, "npy": FIRST,
    "state": FIRST, "gguf": "gguf", "onnx": "onnx", "hdf5": "hdf5", "keras": "hdf5",
}  # fmt: skip
"""Maps each file format to the feature that a program must support to read such files.

Every release supports the formats with the feature ``FIRST``.
"""
_FORMAT_NAMES = tuple(FORMATS)
_DTYPE_NAMES = tuple(DTYPES)
_Span = tuple[int, int, bool]
"""Begin and end of a range of ids in an encoded manifest, and whether these are ids of stored
contents.
"""
_DTYPE_CODES = {name: code for code, name in enumerate(_DTYPE_NAMES)}


class Content(Struct, frozen=True, gc=False):
    """A content that fills ``spec.nbytes`` bytes of the file from ``offset``."""

    offset: int
    spec: TensorSpec
    id: BlobId


class Check(Struct, frozen=True):
    """The CRC-32 of file bytes [start, start + length), in four bytes from ``position`` on."""

    position: int
    start: int
    length: int


class View(Struct, frozen=True):
    """Offset and strides of a tensor in a content, in elements, as in ``torch.as_strided``."""

    offset: int
    strides: tuple[int, ...]


def reach(spec: TensorSpec, view: View) -> tuple[int, int]:
    """The range [first, end) of the content's bytes that contains all elements of a view."""
    if not spec.elements:
        return 0, 0
    size = DTYPES[spec.dtype].itemsize
    last = view.offset + sum((n - 1) * s for n, s in zip(spec.shape, view.strides, strict=True))
    return view.offset * size, (last + 1) * size


class LogicalTensor(Struct, frozen=True, gc=False):
    """A named tensor of the state.

    ``content`` is an index in ``FileEntry.contents``. Without ``view``, the tensor consists of all
    bytes of this content. With ``view``, the offset and strides of the view select elements of this
    content.
    """

    key: str
    spec: TensorSpec
    id: BlobId
    content: int
    view: View | None = None


class State:
    """The tensors of one file, sorted by the UTF-8 bytes of their keys, and their Merkle tree.

    The order in the file does not matter: safetensors reorders tensors, and equal states must have
    equal roots in every format (docs/decisions.md). If two roots are equal, the names, dtypes,
    shapes and bytes of the tensors are equal.
    """

    def __init__(self, tensors: Iterable[LogicalTensor]) -> None:
        self.tensors = tuple(sorted(tensors, key=lambda t: encode_text(t.key)))

    @cached_property
    def tree(self) -> MerkleTree:
        return MerkleTree([leaf(t.id, t.key) for t in self.tensors])

    @property
    def root(self) -> Root:
        return self.tree.root


class FileEntry(Struct, frozen=True, dict=True):
    """A file or an attachment of a version. ``size`` and all offsets are counted in bytes."""

    path: str
    format: str
    size: int
    contents: tuple[Content, ...]
    skeleton: BlobId | None
    checks: tuple[Check, ...] = ()
    tensors: tuple[LogicalTensor, ...] = ()

    @cached_property
    def state(self) -> State:
        return State(self.tensors)

    @property
    def skeleton_size(self) -> int:
        return self.size - sum(c.spec.nbytes for c in self.contents)

    @cached_property
    def content_id(self) -> bytes:
        """A 32-byte hash of all but the path. Files with equal hashes have equal bytes."""
        writer = Writer()
        _write_entry(writer, self, with_path=False)
        return digest(_TAG_ENTRY, writer.done())

    @property
    def state_id(self) -> bytes:
        """The Merkle root of the file's tensors. If there are none, the file's ``content_id``."""
        return self.state.root if self.tensors else self.content_id


class Manifest:
    """The entries of a version in path order. A manifest's id is the hash of its canonical bytes.

    ``entries``: the files. ``attached``: the attachments. ``all_entries``: files and attachments.
    The Merkle root is computed from the files, without the attachments.
    """

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        self.all_entries = tuple(sorted(entries, key=lambda e: e.path.encode()))
        self.entries = self.all_entries
        self.attached = tuple(e for e in self.all_entries if e.path.startswith(ATTACHED))
        if self.attached:
            self.entries = tuple(e for e in self.all_entries if not e.path.startswith(ATTACHED))

    def __repr__(self) -> str:
        """Lists no tensors, because the tensors of a large version would fill the screen."""
        paths = ", ".join(entry.path for entry in self.entries[:3])
        more = f" and {len(self.entries) - 3} more" if len(self.entries) > 3 else ""
        tensors = sum(len(entry.tensors) for entry in self.entries)
        return f"<mvc manifest of {paths or 'nothing'}{more}, tensors: {tensors}>"

    @cached_property
    def by_path(self) -> dict[str, FileEntry]:
        return {e.path: e for e in self.entries}

    @cached_property
    def by_state(self) -> dict[bytes, list[FileEntry]]:
        """Maps each ``state_id`` to the files with this id, in the order of ``entries``."""
        entries: dict[bytes, list[FileEntry]] = {}
        for entry in self.entries:
            entries.setdefault(entry.state_id, []).append(entry)
        return entries

    def file(self, path: str | None = None) -> FileEntry:
        """Returns the file at ``path``, or a file directly in the folder ``path``.

        If ``path`` is None, a file of the version. In these cases, training states (files with an
        optimizer's tensors) and files without tensors are ignored if there are other files. If
        several files are left, the file named ``DEFAULT_STATE`` is returned. Raises UnknownPath if
        there is no file, or if several files are left and no file has this name.
        """
        if path is not None and path in self.by_path:
            return self.by_path[path]
        inside = self.entries if path is None else self.directly_in(path)
        if path is not None and not inside:
            raise UnknownPath(
                f"the version has no path {path}",
                hint="it has " + ", ".join(sorted(self.by_path)[:10]),
            )
        states = [e for e in inside if e.tensors and e.path not in self.training_states]
        states = states or list(inside)
        if len(states) == 1:
            return states[0]
        if not states:
            raise UnknownPath("the version has no files")
        default = str(PurePosixPath(path or ".", DEFAULT_STATE))
        if default in self.by_path:
            return self.by_path[default]
        names = ", ".join(e.path for e in states[:10])
        where = "the version" if path is None else path
        raise UnknownPath(
            f"{where} has several states: {names}",
            hint="name one of them, or the folder of a sharded model (mvc follow: -o DIR/)",
        )

    def under(self, paths: Sequence[str]) -> list[FileEntry]:
        """The files at or below ``paths``. If ``paths`` is empty, all files of the version.

        If a file and a folder are both named ``x``, the path ``x`` means the file, and ``x/`` means
        the folder. Raises UnknownPath if the version lacks a path.
        """
        if not paths:
            return list(self.entries)
        entries: dict[str, FileEntry] = {}
        for path in paths:
            if path in self.by_path:
                entries[path] = self.by_path[path]
                continue
            folder = path.rstrip("/") + "/"
            inside = [e for e in self.entries if path == "." or e.path.startswith(folder)]
            if not inside and path != ".":
                raise UnknownPath(
                    f"the version has no path {printable(path)}", hint="'mvc ls' lists its paths"
                )
            entries |= {e.path: e for e in inside}
        return list(entries.values())

    def directly_in(self, folder: str) -> Sequence[FileEntry]:
        parent = PurePosixPath(folder)
        return [e for e in self.entries if PurePosixPath(e.path).parent == parent]

    @cached_property
    def training_states(self) -> frozenset[str]:
        """Paths of training states that belong to a model of this version."""
        return frozenset(training_path(entry.path) for entry in self.entries) & self.by_path.keys()

    @cached_property
    def attached_by_path(self) -> dict[str, FileEntry]:
        return {e.path: e for e in self.attached}

    @cached_property
    def encoded(self) -> bytes:
        writer = Writer().uint(1).uint(len(self.all_entries))
        for entry in self.all_entries:
            _write_entry(writer, entry, with_path=True)
        return writer.done()

    @cached_property
    def id(self) -> ManifestId:
        return self.id_of(self.encoded)

    @property
    def features(self) -> frozenset[str]:
        """The features that a program must support to read the manifest, without ``FIRST``."""
        dtypes = {content.spec.dtype for e in self.all_entries for content in e.contents}
        dtypes |= {tensor.spec.dtype for e in self.all_entries for tensor in e.tensors}
        features = {FORMATS[entry.format] for entry in self.all_entries}
        features |= {DTYPES[name].feature for name in dtypes}
        return frozenset(features - {FIRST})

    @staticmethod
    def id_of(encoded: bytes) -> ManifestId:
        return ManifestId(digest(_TAG, encoded))

    @cached_property
    def root(self) -> Root:
        """The version's Merkle root: a hash of all tensors with their names.

        If exactly one file has tensors, this is the root of the file's tree. Otherwise this is the
        root of a tree whose leaves are the roots of the files with tensors.
        """
        states = [e for e in self.entries if e.tensors]
        if len(states) == 1:
            return states[0].state.root
        return MerkleTree([leaf(e.state.root, e.path) for e in states]).root

    @classmethod
    def decode(cls, data: bytes, spans: list[_Span] | None = None) -> Manifest:
        """Decodes a manifest. Raises DamagedData if ``data`` is invalid or not in canonical form.

        ``spans``: a list to which the ranges of ids in ``data`` are appended.
        """
        spans = [] if spans is None else spans
        reader = Reader(data, "a manifest")
        if len(data) > MAX_MANIFEST:
            raise reader.fail(f"it is longer than {MAX_MANIFEST} bytes")
        reader.version()
        entries = [_read_entry(reader, spans) for _ in range(reader.count(MAX_TENSORS))]
        reader.end()
        paths = [entry.path.encode() for entry in entries]
        if any(a >= b for a, b in pairwise(paths)):
            raise reader.fail("its entries are not in canonical order, or a path is repeated")
        manifest = cls(entries)
        # The reader accepts only one form of each field, and the order of the paths was checked
        # above. So ``data`` is the canonical encoding.
        manifest.__dict__["encoded"] = data
        return manifest


class Shape:
    """A manifest without its ids. Many versions of a model have the same shape.

    ``specs``: dtype and shape of all stored contents, file by file. For each file, the skeleton
    follows the other contents. ``skeletons``: indices of the skeletons in ``specs``. ``files``: the
    number of files, including attachments. ``raw``: the total size of these files in bytes.
    """

    def __init__(self, data: bytes) -> None:
        """``data``: an encoded manifest with this shape. Raises DamagedData if it is invalid."""
        spans: list[_Span] = []
        manifest = Manifest.decode(data, spans)
        specs: list[TensorSpec] = []
        skeletons = []
        for entry in manifest.all_entries:
            specs += [content.spec for content in entry.contents]
            if entry.skeleton is not None:
                skeletons.append(len(specs))
                specs.append(TensorSpec("raw", (entry.skeleton_size,)))
        self.specs, self.skeletons = tuple(specs), tuple(skeletons)
        self.raw = sum(entry.size for entry in manifest.all_entries)
        self.files = len(manifest.all_entries)
        same = bytearray(b"\xff") * len(data)
        for begin, end, _ in spans:
            same[begin:end] = bytes(end - begin)
        self._mask = int.from_bytes(same, "little")
        self._data = data
        self._objects = [slice(begin, end) for begin, end, is_object in spans if is_object]

    def ids(self, data: bytes) -> bytes | None:
        """The ids in the encoded manifest ``data``, 32 bytes each, in the order of ``specs``.

        Returns None if ``data`` has another shape. If only ids differ, ``data`` is a valid
        manifest, because no rule for a manifest depends on an id.
        """
        one, other = (int.from_bytes(shape, "little") for shape in (data, self._data))
        if len(data) != len(self._data) or (one ^ other) & self._mask:
            return None
        return b"".join([data[place] for place in self._objects])


def _write_entry(writer: Writer, entry: FileEntry, *, with_path: bool) -> None:
    if with_path:
        writer.text(entry.path)
    writer.uint(_FORMAT_NAMES.index(entry.format)).uint(entry.size)
    writer.uint(len(entry.contents))
    end = 0
    for content in entry.contents:
        writer.uint(content.offset - end)
        writer.raw(_spec_bytes(content.spec))
        end = content.offset + content.spec.nbytes
    for content in entry.contents:
        writer.raw(content.id)
    writer.blob(entry.skeleton or b"")
    writer.uint(len(entry.checks))
    for check in entry.checks:
        writer.uint(check.position).uint(check.start).uint(check.length)
    writer.uint(len(entry.tensors))
    for tensor in entry.tensors:
        writer.text(tensor.key).uint(tensor.content).uint(0 if tensor.view is None else 1)
        if tensor.view is not None:
            writer.raw(_spec_bytes(tensor.spec)).raw(tensor.id).uint(tensor.view.offset).uints(
                tensor.view.strides
            )


@lru_cache(maxsize=1024)
def _spec_bytes(spec: TensorSpec) -> bytes:
    return Writer().uint(_DTYPE_CODES[spec.dtype]).uints(spec.shape).done()


def _read_spec(reader: Reader) -> TensorSpec:
    name = _DTYPE_NAMES[reader.uint(len(_DTYPE_NAMES) - 1)]
    return shared_spec(name, reader.uints(MAX_DIMENSIONS))


def _check_any_path(path: str) -> str:
    if path.startswith(ATTACHED):
        return attached_path(path.removeprefix(ATTACHED))
    return check_path(path)


def _checked(reader: Reader, check: Callable[[str], str]) -> str:
    try:
        return check(reader.text(MAX_NAME_BYTES))
    except InvalidName as error:
        raise reader.fail(error.message) from None


def _read_entry(reader: Reader, spans: list[_Span]) -> FileEntry:
    path = _checked(reader, _check_any_path)
    format_ = _FORMAT_NAMES[reader.uint(len(_FORMAT_NAMES) - 1)]
    size = reader.uint(1 << 63)
    placed: list[tuple[int, TensorSpec]] = []
    end = 0
    for _ in range(reader.count(MAX_TENSORS)):
        offset = end + reader.uint(1 << 63)
        spec = _read_spec(reader)
        placed.append((offset, spec))
        end = offset + spec.nbytes
    if end > size:
        raise reader.fail(f"contents of {path} reach past its end")
    begin = reader.position
    contents = tuple(Content(o, s, BlobId(reader.raw(32))) for o, s in placed)
    spans.append((begin, reader.position, True))
    skeleton = reader.blob(32)
    if len(skeleton) not in {0, 32}:
        raise reader.fail("a skeleton id has a wrong length")
    spans.append((reader.position - len(skeleton), reader.position, True))
    checks = tuple(
        Check(reader.uint(size), reader.uint(size), reader.uint(size))
        for _ in range(reader.count(MAX_TENSORS))
    )
    tensors = _read_tensors(reader, contents, spans)
    entry = FileEntry(
        path,
        format_,
        size,
        contents,
        skeleton=BlobId(skeleton) if skeleton else None,
        checks=checks,
        tensors=tensors,
    )
    if entry.skeleton_size > MAX_SKELETON:
        raise reader.fail(f"{path} has {entry.skeleton_size} bytes outside its contents")
    unfolded = sum(t.spec.nbytes for t in tensors if t.view is not None)
    if unfolded > MAX_UNFOLDED[0] * size + MAX_UNFOLDED[1]:
        raise reader.fail(f"the views of {path} unfold to {unfolded} bytes")
    _check_layout(entry)
    return entry


def _read_tensors(
    reader: Reader, contents: tuple[Content, ...], spans: list[_Span]
) -> tuple[LogicalTensor, ...]:
    tensors = []
    for _ in range(reader.count(MAX_TENSORS)):
        key = _checked(reader, check_key)
        if not contents:
            raise reader.fail("a tensor has no content")
        at = reader.uint(len(contents) - 1)
        content = contents[at]
        if reader.uint(1) == 0:
            tensors.append(LogicalTensor(key, content.spec, content.id, at))
            continue
        spec, id_ = _read_spec(reader), BlobId(reader.raw(32))
        spans.append((reader.position - 32, reader.position, False))
        view = View(reader.uint(1 << 62), reader.uints(MAX_DIMENSIONS))
        if len(view.strides) != len(spec.shape):
            raise reader.fail(f"the strides of {key} do not fit its shape")
        if reach(spec, view)[1] > content.spec.nbytes:
            raise reader.fail(f"{key} reaches outside its storage")
        tensors.append(LogicalTensor(key, spec, id_, at, view=view))
    if len({t.key for t in tensors}) != len(tensors):
        raise reader.fail("two tensors have one name")
    return tuple(tensors)


def _check_layout(entry: FileEntry) -> None:
    """Raises DamagedData if a layout contradicts itself.

    Contents and checks must not overlap. Checks must cover bytes of the file. A skeleton must exist
    if and only if some bytes of the file are in no content.
    """
    if (entry.skeleton is None) != (entry.skeleton_size == 0):
        raise DamagedData(f"a manifest is damaged: the skeleton of {entry.path} does not fit")
    spans = [(c.offset, c.offset + c.spec.nbytes) for c in entry.contents if c.spec.nbytes]
    end = 0
    for check in sorted(entry.checks, key=lambda c: c.position):
        inside = end <= check.position and check.position + 4 <= entry.size
        if not inside or check.start + check.length > entry.size:
            raise DamagedData(f"a manifest is damaged: a checksum field of {entry.path}")
        end = check.position + 4
    spans += [(c.position, c.position + 4) for c in entry.checks]
    if any(a[1] > b[0] for a, b in pairwise(sorted(spans))):
        raise DamagedData(f"a manifest is damaged: contents of {entry.path} overlap")
