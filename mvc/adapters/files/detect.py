"""Detects a file's format by its content.

A file that no parser understands is *opaque*: it has no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise

from mvc.adapters.files.gguf import GGUF, parse_gguf
from mvc.adapters.files.numpy_files import MAGIC, parse_npy, parse_npz
from mvc.adapters.files.onnx import ONNX, parse_onnx
from mvc.adapters.files.safetensors import parse_safetensors
from mvc.adapters.files.zip_layout import KERAS_WEIGHTS, find_checks, read_members
from mvc.adapters.parsed import (
    FileParts,
    ParsedContent,
    ParsedFile,
    ParsedTensor,
    Source,
    SourceFile,
)
from mvc.errors import BadModelFile, DamagedData, InvalidName, NotInstalled, UnsupportedTensor
from mvc.model.manifest import FORMATS, FileEntry
from mvc.model.tensor import TensorSpec

_HEAD = 9
_ZIP = b"PK\x03\x04", b"PK\x05\x06"  # first bytes of an archive; of an empty archive
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NEEDS_H5PY = "hdf5"
_PICKLE = b"\x80"
_SMALLEST_CUT = 64 << 10  # bytes; only in larger files, ``RunFinder`` searches for floats
HOW_TO_SAVE = {
    **dict.fromkeys((".pt", ".pth", ".ckpt"), "save it with torch.save, or as .safetensors"),
    **dict.fromkeys((".h5", ".hdf5"), "write its datasets as numbers, without compression"),
    ".keras": "save it with Keras 3, which does not compress",
    ".npz": "save it with numpy.savez, which does not compress",
    ".npy": "save a plain array of numbers in C order",
    ".safetensors": "save it with safetensors",
    ".gguf": "write it in version 3, little-endian, as llama.cpp does",
}  # fmt: skip
"""Maps the suffix of a model file to how to save the file so that mvc can read its tensors."""
# Errors with which a parser rejects a file. Failures of the operating system, and files that change
# while they are read, raise other errors.
_NOT_UNDERSTOOD = (BadModelFile, DamagedData, InvalidName, NotInstalled, UnsupportedTensor)


def parse_file(source: Source, name: str, like: FileEntry | None = None) -> ParsedFile:
    """Parses a file. The first bytes show the format. A file of unknown format is opaque.

    ``name`` is used in messages. ``like``: a stored file, used only if its format needs h5py and
    the new file has the same size. If the bytes are equal, too, the new file has the tensors of
    ``like``. If the bytes differ and h5py is not installed, mvc assumes tensors at the same
    positions as in ``like``. Raises IoFailed and SourceChanged.
    """
    parsed = None
    if like is not None and FORMATS[like.format] == _NEEDS_H5PY and like.size == source.size():
        from mvc.adapters.hashing import hash_file

        with suppress(*_NOT_UNDERSTOOD):
            parsed = parse_as(like, source, name)
            if hash_file(parsed, name).content_id == like.content_id:
                return parsed
    try:
        return _known(source, name) or _runs(source, name)
    except NotInstalled:
        return parsed or _runs(source, name)
    except _NOT_UNDERSTOOD:
        return _runs(source, name)


def parse_as(like: FileEntry, source: Source, name: str) -> SourceFile:
    """Divides the file ``source`` at the same positions as the stored file ``like``.

    The two files must have the same size. If all hashes are equal, too, the two files are equal.
    Raises BadModelFile, InvalidName, SourceChanged.
    """
    checks = find_checks(source, name, read_members(source, name)) if like.checks else ()
    contents = tuple(ParsedContent(c.offset, c.spec) for c in like.contents)
    tensors = tuple(ParsedTensor(t.key, t.spec, t.content, view=t.view) for t in like.tensors)
    return SourceFile(source, name, like.size, FileParts(like.format, contents, tensors, checks))


def _known(source: Source, name: str) -> SourceFile | None:
    parser = _parser(source.read(0, _HEAD))
    return parser and SourceFile(source, name, source.size(), parser(source, name))


def why_opaque(source: Source, name: str) -> tuple[str, str]:
    """Why the tensors of an opaque file are unknown, and how to save the file so that mvc reads its
    tensors.
    """
    why = "mvc does not know its format"
    try:
        _known(source, name)
    except InvalidName as error:
        return error.message, "rename the tensor"
    except NotInstalled as error:
        return error.message, f"install the missing package: {error.hint}"
    except _NOT_UNDERSTOOD as error:
        why = error.message.removeprefix(f"{name}: ").removeprefix(f"{name} ")
    suffix = name[name.rfind(".") :].lower()
    return why, HOW_TO_SAVE.get(suffix, HOW_TO_SAVE[".safetensors"])


def opaque(source: Source, name: str = "the file", cuts: Iterable[int] = ()) -> SourceFile:
    """The whole file as bytes without tensors, split at the positions ``cuts``."""
    size = source.size()
    spans = pairwise([0, *cuts, size])
    contents = (ParsedContent(at, TensorSpec("raw", (end - at,))) for at, end in spans)
    return SourceFile(source, name, size, FileParts("opaque", tuple(contents)))


def _runs(source: Source, name: str) -> SourceFile:
    """A file of unknown format, split where sequences of floats begin."""
    if source.size() < _SMALLEST_CUT:
        return opaque(source, name)
    from mvc.adapters.files.runs import RunFinder  # imports numpy, which few files need

    return opaque(source, name, RunFinder(source, name).cuts())


def _parser(head: bytes) -> Callable[[Source, str], FileParts] | None:
    if head[4:] == b"\0\0\0\0{":  # a header of less than 4 GiB
        return parse_safetensors
    return next((parse for start, parse in _PARSERS.items() if head.startswith(start)), None)


def _parse_pickle(source: Source, name: str) -> FileParts:
    from mvc.adapters.files.torch_files import parse_torch_old  # only torch's users need it

    return parse_torch_old(source, name)


def _parse_hdf5(source: Source, name: str) -> FileParts:
    from mvc.adapters.files.hdf5 import parse_hdf5  # only Keras's users need it

    return parse_hdf5(source, name)


def _parse_zip(source: Source, name: str) -> FileParts:
    from mvc.adapters.files.torch_files import archive_name, parse_torch_zip

    members = read_members(source, name)
    parse = parse_npz if archive_name(members) is None else parse_torch_zip
    if parse is parse_npz and any(member.name == KERAS_WEIGHTS for member in members):
        from mvc.adapters.files.hdf5 import parse_keras as parse  # only Keras's users need it
    parts = parse(source, name, members)
    if members and not parts.tensors and parts.format == "npz":
        raise BadModelFile(f"{name}: a zip file without arrays")
    return parts


_PARSERS: dict[bytes | tuple[bytes, ...], Callable[[Source, str], FileParts]] = {
    _ZIP: _parse_zip,
    MAGIC: parse_npy,
    GGUF: parse_gguf,
    ONNX: parse_onnx,
    _HDF5: _parse_hdf5,
    _PICKLE: _parse_pickle,
}
"""Maps the first bytes of a file to its parser. safetensors files begin with a number instead."""
