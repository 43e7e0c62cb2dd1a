"""Detects incomplete and wrong files, such as a truncated checkpoint or a server's error page.

Such a file has the name or the first bytes of a model file, but no parser of mvc understands it. It
must not go live by accident. So a commit refuses the file, unless the user passes ``--opaque``, or
HEAD has such a file at the same path.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from mvc.adapters.files import lengths, onnx
from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.torch_files import OLD_HEAD
from mvc.adapters.parsed import Source
from mvc.errors import BadModelFile

_HEAD = 8192
_ZIP, _NPY, _TAR = rb"PK(?:\x03\x04|\x05\x06)", rb"\x93NUMPY", rb".{257}ustar"
_GGUF, _TFLITE = rb"GGUF", rb".{4}TFL3"
_HDF5 = rb"(?:.{512}|.{1024}|.{2048}|.{4096})?\x89HDF\r\n\x1a\n"
_LEGACY_TORCH, _PICKLE = OLD_HEAD, rb"\x80"
_SAFETENSORS, _ONNX, _MSGPACK = rb".{4}\0{4}\{", rb"(?#onnx)", rb"(?#msgpack)"
_DCP, _ANYTHING = rb"(?#dcp)PK\x03\x04", rb""
_CHECKS: dict[bytes, Callable[[FileCursor], object]] = {
    _ZIP: lengths.check_zip,
    _NPY: lengths.check_npy,
    _TAR: lengths.check_tar,
    _GGUF: lengths.check_gguf,
    _HDF5: lengths.check_hdf5,
    _LEGACY_TORCH: lengths.check_legacy_torch,
    _PICKLE: lengths.check_pickle,
    _SAFETENSORS: lengths.check_safetensors,
    _ONNX: onnx.tensors,
    _MSGPACK: lengths.check_msgpack,
    _DCP: lengths.check_dcp,
    **dict.fromkeys((_TFLITE, _ANYTHING), lambda _: None),  # the length is unknown
}
"""Maps a pattern of the first bytes to the check that the file is complete."""

_ANY = (_SAFETENSORS, _ZIP, _NPY, _TAR, _GGUF, _HDF5, _LEGACY_TORCH)
_MODELS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".pth.tar"), (_ZIP, _TAR, _LEGACY_TORCH, _PICKLE)),
    **dict.fromkeys((".jit", ".ptl", ".npz"), (_ZIP,)),
    **dict.fromkeys((".h5", ".hdf5"), (_HDF5,)),
    ".keras": (_ZIP, _HDF5),
    ".safetensors": (_SAFETENSORS,),
    ".npy": (_NPY,),
    ".gguf": (_GGUF,),
    ".tflite": (_TFLITE,),
    ".onnx": (_ONNX,),
    ".msgpack": (_MSGPACK,),
    ".distcp": (_DCP, _ANYTHING),
    ".bin": (),
}
"""Maps a suffix to patterns of the first bytes. No patterns: the file may begin with any bytes."""

_POINTERS = {
    rb"version https://(?:git-lfs|hawser)\.github\.com/spec/": "git-lfs ('git lfs pull' loads it)",
    rb"# xet version": "Xet",
    rb"(?:\.\./)*(?:\.git)?/annex/objects/": "git-annex ('git annex get' loads it)",
}
_ANSWERS = (
    rb"(?i)(?:\xef\xbb\xbf)?\s*(?:<(?:!doctype|html|head|\?xml|error)"
    rb"|\{\s*\"(?:errors?|message|detail|code|status)\w*\"\s*:"
    rb"|(?:error )?[45]\d\d[: ]+[a-z ]{4,}|(?:entry|repository|file|not) (?:not )?found"
    rb"|access (?:to|denied)|invalid (?:username|credentials))"
)


def suspicion(source: Source, name: str) -> str | None:
    """The reason why a file is suspicious; None if it is not. ``name``: the path of the file.

    Call this only for a file that no parser understands.
    """
    head, stem = source.read(0, _HEAD), name.rpartition("/")[2].lower()
    suffix = next((s for s in _MODELS if stem.endswith(s) and stem != s), None)
    for pattern, system in _POINTERS.items():
        if re.match(pattern, head):
            return f"it is a pointer of {system}, not the file itself"
    if suffix is not None and not head:
        return "it is empty"
    if suffix is not None and re.match(_ANSWERS, head):
        return "it is a server's answer (HTML, XML, JSON or a message), not the file itself"
    patterns = _MODELS.get(suffix or "") or ()
    pattern_ = next((k for k in patterns or _ANY if re.match(k, head, re.DOTALL)), None)
    named = f"it does not begin like a {suffix} file" if patterns else None
    if pattern_ is None:
        return named
    try:
        _CHECKS[pattern_](FileCursor(source))
    except BadModelFile as error:
        return error.message
    except (ValueError, struct.error):
        return named
    except LookupError:  # a variant of the format that cannot be checked
        return None
    return None
