"""Names from outside: paths, tensor keys, branches, tags, targets (layer 1).

One validator, used on write and on read. Printing goes through ``printable``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from pathlib import PurePosixPath

from mvc.control_folders import is_foreign
from mvc.errors import InvalidName, WrongUsage
from mvc.limits import MAX_NAME_BYTES, MAX_PART_BYTES, MAX_REF_BYTES

FOLDER = ".mvc"
"""The folder of a repository's store, in the folder of its files."""

DEFAULT_STATE = "model.safetensors"
"""The path of a Python state that was committed without a path."""

ATTACHED = ".mvc/"
"""How the paths begin that a version carries beside its files; no file can have such a path."""

SCRATCH = "retraining"
"""The folder of ``.mvc`` with the scratch folders of processes."""

PATCH = "code.patch"
"""What a version carries that its code differed by from its git commit."""

RECIPE = "recipe.json"
"""What a version carries that says how its weights are made again; without it none are given up."""

DATA = "data/"
"""How the tags of data sets begin."""

DATA_SET = "mvc.data"
"""The param of a data set's version: whether it holds the files, or says where they lie."""
BY_VALUE, BY_REFERENCE = "stored", "reference"

REMOTE = "remotes/"
"""How the full names begin of refs that say where a remote's branches and tags were."""

NODES = "nodes/"
"""How the targets begin on which nodes report what they serve: ``nodes/NAME/TARGET``."""

_RESERVED = {"con", "prn", "aux", "nul", "conin$", "conout$"}
_RESERVED |= {port + digit for port in ("com", "lpt") for digit in "123456789¹²³"}
_SHORT_OF_MVC = re.compile(r"mvc~[0-9]+")  # what Windows calls .mvc in eight letters
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+/-]*")
_HEX_ID = re.compile(r"[0-9a-fA-F]{40,64}")


def printable(text: str) -> str:
    """``text`` with every control, format or undecodable character escaped."""
    return (
        text
        if text.isprintable()
        else "".join(
            c
            if c == " " or (c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF)
            else c.encode("unicode_escape", "surrogatepass").decode()
            for c in text
        )
    )


def encode_text(value: str) -> bytes:
    """UTF-8; undecodable bytes of a name represent themselves. Raises WrongUsage."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise WrongUsage(
            f"a text holds a lone surrogate, which is no character: {printable(value[:100])}",
            hint="read the text again with the right encoding",
        ) from None


def an(name: str) -> str:
    """``name`` with its article: ``an int``."""
    return f"{'an' if name[:1].lower() in {*'aeiou'} else 'a'} {name}"


def _no_controls(kind: str, text: str) -> None:
    if text.isprintable():
        return  # quick, and true of nearly all
    if any(unicodedata.category(char) in {"Cc", "Cs", "Cf", "Zl", "Zp"} for char in text):
        raise InvalidName(
            f"{kind} holds a control character: {printable(text)}",
            hint="rename it: control and invisible characters are not accepted",
        )


def training_path(name: str) -> str:
    """The path beside the model's: ``a/model.training.safetensors`` for ``a/model.safetensors``."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}.training{path.suffix}"))


_OF_TRAINING = {
    "grad_scaler", "opt", "opt_state", "optim", "optim_state", "scaler",
}  # fmt: skip
_OF_TRAINING_BEGIN = ("optimizer", "lr_scheduler", "scheduler", "rng")
_TRAINING_FILES = ("optimizer.", "scheduler.", "rng_state")  # as transformers and accelerate do


def is_training_key(key: str) -> bool:
    """Whether a tensor of a checkpoint is of an optimizer, a scheduler or a random generator."""
    first = key.lower().partition(".")[0]
    return (
        first in _OF_TRAINING
        or first.startswith(_OF_TRAINING_BEGIN)
        or first.endswith(("rng_state", "generator_state"))
    )


def training_files(paths: Collection[str]) -> set[str]:
    """Those of a version's paths that hold no model but the state of its training."""
    beside = {training_path(path) for path in paths}
    return {p for p in paths if p in beside or p.rpartition("/")[2].startswith(_TRAINING_FILES)}


MODELS = (
    ".pth.tar", ".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".jit", ".ptl",
    ".onnx", ".gguf", ".h5", ".hdf5", ".keras", ".tflite", ".msgpack",
)  # fmt: skip
"""How the names of model files end."""
_KEPT_AS_BYTES = (".distcp", ".joblib", ".pickle", ".pkl", ".tar.gz")


def may_hold_tensors(path: str) -> bool:
    """Whether a file has, by its name, tensors that somebody may want to compare."""
    return path.lower().endswith(MODELS + _KEPT_AS_BYTES)


def check_key(key: str, kind: str = "tensor") -> str:
    """A tensor's, metric's or param's name: not empty, at most 1,024 bytes, no controls."""
    if not key:
        raise InvalidName(f"a {kind} has an empty name")
    if len(key.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidName(f"a {kind}'s name is longer than {MAX_NAME_BYTES} bytes: {key[:60]}…")
    _no_controls(f"a {kind}'s name", key)
    return key


def check_path(path: str) -> str:
    """A tracked path: relative, '/' between parts, none of them special on any system.

    Accepted are names that differ in the case of letters only (two files, wherever the file
    system tells them apart: checkout asks), names that begin with '-' (arguments end with
    '--') or with a dot, and characters that only Windows refuses.
    """
    if not path or len(path.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidName(f"a path must have 1 to {MAX_NAME_BYTES} bytes")
    _no_controls("a path", path)
    if unicodedata.normalize("NFC", path) != path:
        raise InvalidName(f"a path is not in Unicode form NFC: {printable(path)}")
    for part in path.split("/"):
        _check_part(path, part)
    return path


def check_place(path: str) -> str:
    """A path to which a file may be written. Raises InvalidName.

    What lies in ``.git`` can have git run a program.
    """
    if is_foreign(path):
        raise InvalidName(
            f"a path leads into the folder of a version control system: {path}",
            hint="a file of a version can be written elsewhere: 'mvc checkout -o FILE REV PATH'",
        )
    return path


def attached_path(name: str) -> str:
    """The path in a manifest of what a version carries under ``name``. Raises InvalidName."""
    return ATTACHED + check_path(name)


def _check_part(path: str, part: str) -> None:
    if len(part.encode("utf-8", "surrogatepass")) > MAX_PART_BYTES:
        raise InvalidName(
            f"a part of a path is longer than {MAX_PART_BYTES} bytes: {part[:60]}…",
            hint="no file system takes such a name",
        )
    if part in {"", ".", ".."}:
        raise InvalidName(f"a path must be relative and without '.' or '..': {path}")
    if part.lower() == ".mvc" or _SHORT_OF_MVC.fullmatch(part.lower()):
        raise InvalidName(f"a path leads into a repository's own folder: {path}")
    if "\\" in part or ":" in part or part[-1] in ". " or part.split(".")[0].lower() in _RESERVED:
        raise InvalidName(
            f"a path is not valid on every system: {path}",
            hint=r"avoid '\', ':', names that end in '.' or a space, and CON, NUL, COM1, ...",
        )


def is_under(path: str, chosen: Collection[str]) -> bool:
    """Whether ``path`` is one of ``chosen`` or inside one; true if none is chosen, or '' or '.'."""
    return not chosen or any(
        c in {"", "."} or path == c or path.startswith(c.rstrip("/") + "/") for c in chosen
    )


def check_ref(kind: str, name: str) -> str:
    """A branch, tag or target: letters, digits, ``. _ + / -``, not mistakable for an id."""
    if name == "HEAD":
        raise InvalidName(
            f"HEAD is the current version, and cannot be the name of a {kind}",
            hint="choose another name; where no version is named, HEAD is meant",
        )
    good = (
        0 < len(name) <= MAX_REF_BYTES
        and _REF.fullmatch(name)
        and not _HEX_ID.fullmatch(name)
        and all(part and part[0] not in ".-" and part[-1] != "." for part in name.split("/"))
        and ".." not in name
        and not name.endswith(".lock")
    )
    if not good:
        raise InvalidName(
            f"not a valid name for a {kind}: {printable(name)!r}",
            hint="use letters, digits and . _ + / -, starting with a letter or digit",
        )
    return name


def check_node(name: str) -> str:
    """The name of a node in ``nodes/NAME/TARGET``; raises InvalidName."""
    check_ref("node", name)
    if "/" in name:
        raise InvalidName(
            f"the name of a node has no '/': {printable(name)}",
            hint="it stands in nodes/NAME/TARGET",
        )
    return name


def is_report(target: str) -> bool:
    """Whether what is deployed on a target is what a node reports."""
    return target.startswith(NODES)


def check_author(name: str) -> str:
    """Returns ``name`` if it is one line of printable text; raises InvalidName otherwise."""
    if not name.strip():
        raise InvalidName(
            "the author's name is empty",
            hint="leave it out to take user.name, or the login and host name",
        )
    if printable(name) != name:
        raise InvalidName(
            f"the author's name holds a control character: {printable(name)}",
            hint="write it on one line, without control or invisible characters",
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidName(f"the author's name is longer than {MAX_NAME_BYTES} bytes")
    return name


def check_run(name: str) -> str:
    """Returns ``name`` if it can be that of a run, or is empty; raises InvalidName otherwise."""
    if printable(name) != name or name != name.strip():
        raise InvalidName(
            f"the run's name holds a control character, or begins or ends with a space: "
            f"{printable(name)!r}",
            hint="write it on one line, such as 'lr-0.1'",
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidName(f"the run's name is longer than {MAX_NAME_BYTES} bytes")
    return name
