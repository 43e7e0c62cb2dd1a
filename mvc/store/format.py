"""The file ``format``: the version of a repository and the features it uses.

A feature stands there before the first byte that needs it is written, so a program
that does not know it refuses the repository instead of guessing.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from mvc.errors import DamagedData, UnsupportedFormat
from mvc.io.files import FileSystem

FORMAT = "format"
_NAME = "mvc-repository"
_VERSION = 1
KNOWN = frozenset(
    {"codings-2", "commit-2", "commit-3", "compacted", "entry-2", "entry-3", "entry-4", "lc"}
)
_MAX_SIZE = 4096


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
    if name != _NAME or not version.isdigit():
        raise DamagedData("the repository's format file is damaged")
    if int(version) > _VERSION or not names <= KNOWN:
        unknown = ", ".join(sorted(names - KNOWN)) or f"format {version}"
        raise UnsupportedFormat(
            f"this repository needs a newer mvc: it uses {unknown}", hint="upgrade mvc"
        )
    return names


def read_features(fs: FileSystem, folder: Path) -> frozenset[str]:
    """The features of the repository folder ``folder``; errors as of ``parse_format``."""
    return parse_format(fs.read_bytes(folder / FORMAT, _MAX_SIZE))


def add_features(fs: FileSystem, folder: Path, features: frozenset[str]) -> None:
    """Makes sure, durably, that ``features`` are named. Call it under the journal's lock."""
    present = read_features(fs, folder)
    if not features <= present:
        fs.write_atomic(folder / FORMAT, format_line(present | features))
