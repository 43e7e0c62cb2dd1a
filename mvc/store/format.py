"""The file ``format``: the version of a repository and the features it uses.

A feature stands there before the first byte that needs it is written, so a program
that does not know it refuses the repository instead of guessing.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from mvc.errors import DamagedData, ReadOnly, UnsupportedFormat
from mvc.io.files import FileSystem
from mvc.model.manifest import FORMATS
from mvc.model.statement import KINDS
from mvc.names import printable
from mvc.types import FIRST_RELEASE

FORMAT = "format"
_NAME = "mvc"
_VERSION = 1
KNOWN = frozenset(
    {"blocks", "lc", "optim", "stages", *FORMATS.values(), *(kind.feature for kind in KINDS)}
) - {FIRST_RELEASE}
"""Features of the codes that this release has, beside those of the first one."""
_BARS_WRITING = "w-"
_UPGRADE = "upgrade mvc"
_MAX_SIZE = 4096
_LONGEST = 200  # characters of names that are not known, as they are shown


def format_line(features: frozenset[str] = frozenset()) -> bytes:
    """The content of the file."""
    text = f"{_NAME} {_VERSION} features={','.join(sorted(features))}"
    return f"{text} check={blake3(text.encode()).hexdigest(8)}\n".encode()


def parse_format(data: bytes) -> frozenset[str]:
    """The features; UnsupportedFormat for a newer format or unknown ones, else DamagedData."""
    text, _, check = data.decode("ascii", "replace").partition(" check=")
    if check != blake3(text.encode()).hexdigest(8) + "\n":
        raise DamagedData(
            "the repository's format file is damaged",
            hint="run 'mvc fsck --repair': the rest of the repository says what it must be",
        )
    name, version, features = ([*text.split(" "), "", ""])[:3]
    names = frozenset(f for f in features.removeprefix("features=").split(",") if f)
    if name != _NAME:
        raise UnsupportedFormat(
            f"mvc does not read the repository's format, {printable(name[:_LONGEST])!r}",
            hint="check its versions out with the program that made it, and commit them anew",
        )
    if version != str(_VERSION):
        raise _newer(f"format {version}")
    return check_features(names)


def check_features(features: frozenset[str]) -> frozenset[str]:
    """Returns them; UnsupportedFormat if one is unknown, unless it only bars writing."""
    if refused := sorted(f for f in features - KNOWN if not f.startswith(_BARS_WRITING)):
        raise _newer(printable(", ".join(refused)[:_LONGEST]))
    return features


def _newer(unknown: str) -> UnsupportedFormat:
    return UnsupportedFormat(f"this repository needs a newer mvc: it uses {unknown}", hint=_UPGRADE)


def only_read(features: frozenset[str]) -> str:
    """Why a repository with these features can be read but not written; empty if it can."""
    unknown = ", ".join(sorted(features - KNOWN))
    return unknown and f"this mvc can read the repository, but not write it: it uses {unknown}"


def read_features(fs: FileSystem, folder: Path) -> frozenset[str]:
    """The features of the repository folder ``folder``; errors as of ``parse_format``."""
    return parse_format(fs.read_bytes(folder / FORMAT, _MAX_SIZE))


def add_features(fs: FileSystem, folder: Path, features: frozenset[str]) -> None:
    """Makes sure, durably, that ``features`` are named. Call it under the journal's lock.

    Raises UnsupportedFormat for one that this release does not know, and ReadOnly if those that
    are named already forbid to write.
    """
    present = read_features(fs, folder)
    if why := only_read(present):
        raise ReadOnly(why, hint=_UPGRADE)
    if not check_features(features) <= present:
        write_features(fs, folder, present | features)


def write_features(fs: FileSystem, folder: Path, features: frozenset[str]) -> None:
    """Names these features and no others. Call it under the journal's lock."""
    fs.write_atomic(folder / FORMAT, format_line(features))
