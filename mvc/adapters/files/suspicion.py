"""Detects opaque files (files that no parser understands) that are not what they seem.

Name or first bytes of such a file claim a format, but the content is incomplete or different. Any
bytes can be versioned. But a partly written checkpoint, or a server's error page instead of a
download, must not go live by accident.
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
    **dict.fromkeys((_TFLITE, _ANYTHING), lambda _: None),  # nothing states the length
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
"""Maps a suffix to the first bytes that such a file may have; empty: any."""

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
    """Why the file is incomplete or wrong for its name; None if nothing is suspicious.

    Call it only for files that no parser understood.
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
    except LookupError:  # unsupported: nobody knows whether it is complete
        return None
    return None
