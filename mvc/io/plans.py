"""Plans: which files a replacement of several files renames and deletes (layer 1).

A plan is in the folder of its files, so that only a process that may write there can have created
it; a *pointer* in ``.mvc`` names a plan elsewhere. Both are untrusted input like everything in
``.mvc``: a plan that fails a check has no effect (docs/format.md, "Other files").
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
"""Maximum bytes of a plan; a replacement that would need more has none."""

_TEMPORARY = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}")
_FIELDS = ("folder", "device", "inode", "owner")


class PlanStep(Struct, frozen=True):
    """One file. ``temporary`` is renamed to ``name``; if it is empty, ``name`` is deleted.

    ``before``: size, mtime and ctime in ns, and inode of the old file; empty for none. ``check``
    identifies the content of ``temporary``.
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
        """Whether the step stays in its folder and out of those of version control systems."""
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
    """``then``: further steps of the replacement, once all files are replaced.

    ``version``: the version of the files; empty if there is none.
    """

    steps: Sequence[PlanStep]
    then: Mapping[str, str]
    is_ready: bool = False
    version: str = ""

    def encode(self) -> bytes:
        """The first line."""
        fields = {
            "steps": [[step.name, step.temporary, *step.before] for step in self.steps],
            "checks": [step.check for step in self.steps],
            "then": dict(self.then),
            "version": self.version,
        }
        return json.dumps(fields).encode() + b"\n"

    @staticmethod
    def ready(line: bytes) -> bytes:
        """The second line, for this first one."""
        return b"ready %08x\n" % zlib.crc32(line)

    @classmethod
    def parse(cls, data: bytes) -> Plan | None:
        """None for an invalid plan. No two steps have the same temporary file."""
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
    """A folder that contains a plan; ``owner`` is the user that it belongs to."""

    folder: str
    device: int
    inode: int
    owner: int

    @classmethod
    def to(cls, fs: FileSystem, folder: Path) -> Pointer | None:
        """None if the folder does not exist, or its path contains a symbolic link."""
        identity = fs.stat(folder, follow=False)
        if identity is None or not identity.is_dir or fs.realpath(folder) != folder:
            return None
        return cls(str(folder), identity.device, identity.inode, identity.owner)

    def encode(self) -> bytes:
        values = (self.folder, self.device, self.inode, self.owner)
        return json.dumps(dict(zip(_FIELDS, values, strict=True))).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Pointer | None:
        """None for an invalid pointer."""
        fields = _object(data)
        values = [fields.get(name) for name in _FIELDS]
        kinds = [type(value) for value in values]
        if fields.keys() != set(_FIELDS) or kinds != [str, int, int, int]:
            return None
        return cls(*values)  # type: ignore[arg-type]

    def plan(self, number: str) -> Path:
        """The file of the plan with this number."""
        return Path(self.folder) / f"{TEMPORARY}{number}"

    def is_true(self, fs: FileSystem) -> bool:
        """Whether the folder is the same one that the writer used."""
        path = Path(self.folder)
        return path.is_absolute() and Pointer.to(fs, path) == self


def is_temporary(name: str) -> bool:
    """Whether this could be the name of a temporary file of a replacement."""
    return _TEMPORARY.fullmatch(name) is not None


def is_own_file(fs: FileSystem, path: Path) -> bool:
    """Whether ``path`` is a regular file of this user."""
    identity: FileIdentity | None = fs.stat(path, follow=False)
    return identity is not None and identity.is_file and identity.owner in trusted_owners()


def before(fs: FileSystem, path: Path) -> tuple[int, ...]:
    """The file at ``path``, in the form of ``PlanStep.before``."""
    old = fs.stat(path, follow=False)
    return () if old is None else (old.size, old.mtime_ns, old.ctime_ns, old.inode)


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
