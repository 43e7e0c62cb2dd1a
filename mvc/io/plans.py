"""Plans: files that allow mvc to complete an interrupted replacement of several files.

To replace files, such as in a checkout, mvc writes temporary files and renames them. A *plan* lists
the renames and the files to delete. For files of the work tree, the plan is in ``.mvc``. For files
of any other folder, the plan is in this other folder, so that only a process that may write there
can create the plan. A *pointer* (a file in ``.mvc``) names the folder. Plans and pointers are
untrusted input: mvc ignores a plan or pointer that fails a check (docs/format.md, "Other files").
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from mvc.control_folders import is_foreign
from mvc.io.files import TEMPORARY, FileIdentity, FileSystem
from mvc.io.process import trusted_owners

MOST = 1 << 26
"""Maximum number of bytes of a plan. If a plan would be larger, no plan is written."""

_TEMPORARY = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}")
_FIELDS = ("folder", "device", "inode", "owner")


class PlanStep(Struct, frozen=True):
    """What to do with one file: rename ``temporary`` to ``name``.

    If ``temporary`` is "": delete ``name``.

    ``before``: size, mtime (in ns), ctime (in ns) and inode of the old file ``name``; empty if
    there is no old file. ``check`` identifies the content of ``temporary``.
    """

    name: str
    temporary: str
    before: tuple[int, ...]
    check: str = ""

    def place(self, folder: Path) -> Path:
        return folder / self.name

    def written(self, folder: Path) -> Path:
        return self.place(folder).with_name(self.temporary)

    def is_sound(self) -> bool:
        """Whether the step can be done safely.

        ``name`` must be a path below the folder, and not in the folder of a version control system,
        such as ``.git``, or have the name of a temporary file. ``temporary`` must be empty or the
        name of a temporary file.
        """
        if not isinstance(self.name, str) or not isinstance(self.temporary, str):
            return False
        parts = Path(self.name).parts
        return (
            bool(parts)
            and parts[0] != "/"
            and ".." not in parts
            and not is_foreign("/".join(parts))
            and not any(map(is_temporary, parts))
            and (self.temporary == "" or is_temporary(self.temporary))
            and len(self.before) in {0, 4}
        )


class Plan(Struct, frozen=True):
    """The steps of a replacement. ``then`` says what to do after all steps, such as to move HEAD.

    ``is_ready``: whether all temporary files are durable. ``version``: the version that contains
    the new files, or an empty text.
    """

    steps: Sequence[PlanStep]
    then: Mapping[str, str]
    is_ready: bool = False
    version: str = ""

    def encode(self) -> bytes:
        """The first line of the plan. The second line (``ready``) is written later."""
        fields = {
            "steps": [[step.name, step.temporary, *step.before] for step in self.steps],
            "checks": [step.check for step in self.steps],
            "then": dict(self.then),
            "version": self.version,
        }
        return json.dumps(fields).encode() + b"\n"

    @staticmethod
    def ready(line: bytes) -> bytes:
        """The second line of the plan, with a checksum of the first line ``line``.

        mvc writes the second line when all temporary files are durable.
        """
        return b"ready %08x\n" % zlib.crc32(line)

    @classmethod
    def parse(cls, data: bytes) -> Plan | None:
        """The plan in ``data``. None if it is invalid, or if two steps have one temporary file."""
        line, end, rest = data.partition(b"\n")
        fields = _object(line)
        try:
            checks, then, version = fields["checks"], fields["then"], fields["version"]
            steps = [
                PlanStep(name, temporary, tuple(facts), check)
                for (name, temporary, *facts), check in zip(fields["steps"], checks, strict=True)
            ]
            texts = (version, *checks, *then, *then.values())
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        if not all(isinstance(text, str) for text in texts):
            return None
        written = [step.temporary for step in steps if step.temporary]
        if not all(step.is_sound() for step in steps) or len({*written}) < len(written):
            return None
        return cls(steps, then, rest == cls.ready(line + end), version=version)


class Pointer(Struct, frozen=True):
    """A file that names a folder with a plan. ``owner``: the user id of the folder's owner."""

    folder: str
    device: int
    inode: int
    owner: int

    @classmethod
    def to(cls, fs: FileSystem, folder: Path) -> Pointer | None:
        """A pointer to ``folder``.

        None if ``folder`` is not a folder, or if its path contains a symbolic link.
        """
        identity = fs.stat(folder, follow=False)
        if identity is None or not identity.is_dir or fs.realpath(folder) != folder:
            return None
        return cls(str(folder), identity.device, identity.inode, identity.owner)

    def encode(self) -> bytes:
        values = (self.folder, self.device, self.inode, self.owner)
        return json.dumps(dict(zip(_FIELDS, values, strict=True))).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Pointer | None:
        """The pointer in ``data``; None if it is invalid."""
        fields = _object(data)
        values = [fields.get(name) for name in _FIELDS]
        kinds = [type(value) for value in values]
        if fields.keys() != set(_FIELDS) or kinds != [str, int, int, int]:
            return None
        return cls(*values)  # type: ignore[arg-type]

    def plan(self, number: str) -> Path:
        """The path of the plan.

        ``number``: a hexadecimal number, which is the file name of this pointer, and the end of the
        plan's name.
        """
        return Path(self.folder) / f"{TEMPORARY}{number}"

    def is_true(self, fs: FileSystem) -> bool:
        """Whether the folder at the path is still the folder for which the pointer was written."""
        path = Path(self.folder)
        return path.is_absolute() and Pointer.to(fs, path) == self


def is_temporary(name: str) -> bool:
    """Whether ``name`` has the form of a temporary file of a replacement."""
    return _TEMPORARY.fullmatch(name) is not None


def is_own_file(fs: FileSystem, path: Path) -> bool:
    """Whether ``path`` is a regular file of this user, or of the user who called ``sudo``."""
    identity: FileIdentity | None = fs.stat(path, follow=False)
    return identity is not None and identity.is_file and identity.owner in trusted_owners()


def before(fs: FileSystem, path: Path) -> tuple[int, ...]:
    """Size, times and inode of the file at ``path``, in the form of ``PlanStep.before``."""
    old = fs.stat(path, follow=False)
    return () if old is None else (old.size, old.mtime_ns, old.ctime_ns, old.inode)


def _object(data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``; an empty dict if ``data`` is anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
