"""Reads and writes the file ``.mvc/format``: a repository's format version and its features.

A *feature* is an addition to the format that the first release of mvc does not know. mvc adds a
feature to this file before it writes data that need the feature. A release that does not know the
feature then refuses the repository. If the name of the feature begins with ``w-``, the release may
read the repository, but not write to it.
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
"""The features that this release knows.

``FIRST_RELEASE`` means "no feature": every release supports the format.
"""
_BARS_WRITING = "w-"
_UPGRADE = "upgrade mvc"
_MAX_SIZE = 4096
_LONGEST = 200  # characters of unknown names in messages


def format_line(features: frozenset[str] = frozenset()) -> bytes:
    """The content of the file ``format``: one line that ends in a checksum."""
    text = f"{_NAME} {_VERSION} features={','.join(sorted(features))}"
    return f"{text} check={blake3(text.encode()).hexdigest(8)}\n".encode()


def parse_format(data: bytes) -> frozenset[str]:
    """The features in ``data``, the content of the file ``format``.

    Raises DamagedData if the checksum is wrong. Raises UnsupportedFormat if the format is unknown,
    or if an unknown feature forbids reading.
    """
    text, _, check = data.decode("ascii", "replace").partition(" check=")
    if check != blake3(text.encode()).hexdigest(8) + "\n":
        raise DamagedData(
            "the repository's format file is damaged",
            hint="run 'mvc fsck --repair' to write the file from the rest of the repository",
        )
    name, version, features = ([*text.split(" "), "", ""])[:3]
    names = frozenset(f for f in features.removeprefix("features=").split(",") if f)
    if name != _NAME:
        raise UnsupportedFormat(
            f"mvc cannot read the repository's format, {printable(name[:_LONGEST])!r}",
            hint="check the versions out with the program that wrote the repository, and commit "
            "them with mvc",
        )
    if version != str(_VERSION):
        raise _newer(f"format {version}")
    return check_features(names)


def check_features(features: frozenset[str]) -> frozenset[str]:
    """Returns ``features``. Raises UnsupportedFormat if an unknown feature forbids reading.

    An unknown feature whose name begins with ``w-`` only forbids writing.
    """
    if refused := sorted(f for f in features - KNOWN if not f.startswith(_BARS_WRITING)):
        raise _newer(printable(", ".join(refused)[:_LONGEST]))
    return features


def _newer(unknown: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"this repository uses {unknown}, which needs a newer mvc", hint=_UPGRADE
    )


def only_read(features: frozenset[str]) -> str:
    """Why mvc cannot write to a repository with these features; empty if it can."""
    unknown = ", ".join(sorted(features - KNOWN))
    return unknown and (
        f"this mvc can read the repository, but not write it: the repository uses {unknown}"
    )


def read_features(fs: FileSystem, folder: Path) -> frozenset[str]:
    """The features of a repository. ``folder``: its ``.mvc``. Raises as ``parse_format``."""
    return parse_format(fs.read_bytes(folder / FORMAT, _MAX_SIZE))


def add_features(fs: FileSystem, folder: Path, features: frozenset[str]) -> None:
    """Adds ``features`` to the file. The caller must hold the lock of the journal.

    The change is durable on return. Raises ReadOnly if the file has an unknown feature that only
    forbids writing (``w-``). Raises UnsupportedFormat if the file or ``features`` has an unknown
    feature that forbids reading.
    """
    present = read_features(fs, folder)
    if why := only_read(present):
        raise ReadOnly(why, hint=_UPGRADE)
    if not check_features(features) <= present:
        write_features(fs, folder, present | features)


def write_features(fs: FileSystem, folder: Path, features: frozenset[str]) -> None:
    """Writes the file with these features. The caller must hold the lock of the journal."""
    fs.write_atomic(folder / FORMAT, format_line(features))
