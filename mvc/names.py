"""Checks names from users and files: paths, tensor keys, branches, tags, targets.

The same checks run on write and on read. ``printable`` escapes names for output.
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
"""The folder of a repository's store, inside its working folder."""

DEFAULT_STATE = "model.safetensors"
"""The path of a state (a mapping of tensors) that is committed from Python without a path."""

ATTACHED = ".mvc/"
"""Prefix of the paths of attachments: stored with a version, but not among its tracked files."""

SCRATCH = "retraining"
"""The folder in ``.mvc`` for temporary folders, for example of a training that runs again."""

PATCH = "code.patch"
"""The attachment with the uncommitted changes of the code, as a patch of the code's git commit."""

RECIPE = "recipe.json"
"""The attachment that describes how to replay a training.

mvc drops the weights of a version only if the version has this attachment.
"""

DATA = "data/"
"""Prefix of the tags of data sets."""

DATA_SET = "mvc.data"
"""The param that says whether a data set's version stores the files or only their hashes."""
BY_VALUE, BY_REFERENCE = "stored", "reference"

REMOTE = "remotes/"
"""Prefix of the full names of remote-tracking refs, such as ``remotes/origin/main``."""

NODES = "nodes/"
"""Prefix of targets ``nodes/NAME/TARGET``, on which the node (serving machine) NAME reports."""

_RESERVED = {"con", "prn", "aux", "nul", "conin$", "conout$"}
_RESERVED |= {port + digit for port in ("com", "lpt") for digit in "123456789¹²³"}
_SHORT_OF_MVC = re.compile(r"mvc~[0-9]+")  # the 8.3 names of .mvc on Windows
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+/-]*")
_HEX_ID = re.compile(r"[0-9a-fA-F]{40,64}")


def printable(text: str) -> str:
    """``text`` with control, format and undecodable characters escaped."""
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
    """``value`` in UTF-8. Bytes that could not be decoded (surrogateescape) are restored.

    Raises WrongUsage for any other surrogate.
    """
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise WrongUsage(
            f"a text contains a lone surrogate, which is not a character: {printable(value[:100])}",
            hint="read the text again with the right encoding",
        ) from None


def an(name: str) -> str:
    """``name`` with its article: ``an int``."""
    return f"{'an' if name[:1].lower() in {*'aeiou'} else 'a'} {name}"


def _no_controls(kind: str, text: str) -> None:
    if text.isprintable():
        return  # fast path
    if any(unicodedata.category(char) in {"Cc", "Cs", "Cf", "Zl", "Zp"} for char in text):
        raise InvalidName(
            f"{kind} contains a control character: {printable(text)}",
            hint="rename it without control and invisible characters",
        )


def training_path(name: str) -> str:
    """The path of a model's training state: ``model.training.safetensors`` for
    ``model.safetensors``.
    """
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}.training{path.suffix}"))


_TRAINING_PARTS = {
    "grad_scaler", "opt", "opt_state", "optim", "optim_state", "scaler",
}  # fmt: skip
_TRAINING_PREFIXES = ("optimizer", "lr_scheduler", "scheduler", "rng")
_TRAINING_FILES = ("optimizer.", "scheduler.", "rng_state")  # written by transformers, accelerate


def is_training_key(key: str) -> bool:
    """Whether a checkpoint's tensor belongs to an optimizer, a scheduler or a random generator."""
    first = key.lower().partition(".")[0]
    return (
        first in _TRAINING_PARTS
        or first.startswith(_TRAINING_PREFIXES)
        or first.endswith(("rng_state", "generator_state"))
    )


def training_files(paths: Collection[str]) -> set[str]:
    """The paths among ``paths`` that contain training states instead of models."""
    of_models = {training_path(path) for path in paths}
    return {p for p in paths if p in of_models or p.rpartition("/")[2].startswith(_TRAINING_FILES)}


MODELS = (
    ".pth.tar", ".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".jit", ".ptl",
    ".onnx", ".gguf", ".h5", ".hdf5", ".keras", ".tflite", ".msgpack",
)  # fmt: skip
"""Suffixes of model files."""
_STORED_AS_BYTES = (".distcp", ".joblib", ".pickle", ".pkl", ".tar.gz")


def may_hold_tensors(path: str) -> bool:
    """Whether a file's name suggests that it contains tensors."""
    return path.lower().endswith(MODELS + _STORED_AS_BYTES)


def check_key(key: str, kind: str = "tensor") -> str:
    """Returns the name of a tensor, metric or param if it is valid; otherwise raises InvalidName.

    A valid name has 1 to 1,024 bytes and no control characters.
    """
    if not key:
        raise InvalidName(f"a {kind} has an empty name")
    if len(key.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidName(f"a {kind}'s name is longer than {MAX_NAME_BYTES} bytes: {key[:60]}…")
    _no_controls(f"a {kind}'s name", key)
    return key


def check_path(path: str) -> str:
    """Returns ``path`` if it is a valid tracked path; otherwise raises InvalidName.

    A valid path is relative and has '/' between its parts. Names that a system would change or
    reserves, such as ``a.`` and ``CON`` on Windows, are invalid. Names that Windows only refuses,
    such as ``a?``, are valid. Parts may begin with '-' or '.'. Two valid paths may differ only in
    upper and lower case, which some file systems do not distinguish.
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
    """Returns ``path`` if mvc may write a file at this path; otherwise raises InvalidName.

    Refuses paths in folders such as ``.git``, because files in ``.git`` can make git run programs.
    """
    if is_foreign(path):
        raise InvalidName(
            f"a path leads into the folder of a version control system: {path}",
            hint="write the version's file elsewhere: 'mvc checkout -o FILE REV PATH'",
        )
    return path


def attached_path(name: str) -> str:
    """The path of an attachment in a manifest (a version's list of files). Raises InvalidName."""
    return ATTACHED + check_path(name)


def _check_part(path: str, part: str) -> None:
    if len(part.encode("utf-8", "surrogatepass")) > MAX_PART_BYTES:
        raise InvalidName(
            f"a part of a path is longer than {MAX_PART_BYTES} bytes: {part[:60]}…",
            hint="shorten this part: file systems refuse longer names",
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
    """Whether ``path`` is in ``chosen``, or inside a folder that is in ``chosen``.

    True if ``chosen`` is empty. The folders '' and '.' contain every path.
    """
    return not chosen or any(
        c in {"", "."} or path == c or path.startswith(c.rstrip("/") + "/") for c in chosen
    )


def check_ref(kind: str, name: str) -> str:
    """Returns the name of a branch, tag or target if it is valid; otherwise raises InvalidName.

    A valid name has letters, digits and ``. _ + / -``, and does not look like an id.
    """
    if name == "HEAD":
        raise InvalidName(
            f"HEAD means the current version, and cannot be the name of a {kind}",
            hint="choose another name",
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
    """Returns ``name`` if it can be NAME in ``nodes/NAME/TARGET``; otherwise raises InvalidName."""
    check_ref("node", name)
    if "/" in name:
        raise InvalidName(
            f"the name of a node cannot contain '/': {printable(name)}",
            hint="it becomes part of nodes/NAME/TARGET",
        )
    return name


def is_report(target: str) -> bool:
    """Whether deployments on a target are reports of a node (``NODES``)."""
    return target.startswith(NODES)


def check_author(name: str) -> str:
    """Returns ``name`` if it is one line of printable text; otherwise raises InvalidName."""
    if not name.strip():
        raise InvalidName(
            "the author's name is empty",
            hint="omit it to use the setting user.name, or the login and host name",
        )
    if printable(name) != name:
        raise InvalidName(
            f"the author's name contains a control character: {printable(name)}",
            hint="write it on one line, without control or invisible characters",
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidName(f"the author's name is longer than {MAX_NAME_BYTES} bytes")
    return name


def check_run(name: str) -> str:
    """Returns ``name`` if it is empty or a valid run name; otherwise raises InvalidName."""
    if printable(name) != name or name != name.strip():
        raise InvalidName(
            f"the run's name contains a control character, or begins or ends with a space: "
            f"{printable(name)!r}",
            hint="write it on one line, such as 'lr-0.1'",
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidName(f"the run's name is longer than {MAX_NAME_BYTES} bytes")
    return name
