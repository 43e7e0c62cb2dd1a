"""Repositories as an fsspec file system: ``mvc://REPOSITORY@REVISION/PATH``.

Any revision can be read; a branch can be written, and what is written becomes a commit: a
file when it is closed, everything in ``with fs.transaction`` at its end. Checkpoints of
torch.distributed.checkpoint are refused: ``mvc.frameworks.dcp`` is for them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from mvc.errors import NotARepository, UnknownRevision, WrongUsage
from mvc.frameworks.common.staging import check_new_path, scratch
from mvc.frameworks.fsspec.location import (
    Location,
    NoSuchFile,
    Opened,
    absolute,
    branch_of,
    locate,
    opened,
    version_of,
)
from mvc.frameworks.fsspec.parts import PartsFile, entry_parts
from mvc.frameworks.fsspec.write import (
    OneCommit,
    Planned,
    Spool,
    keep,
    opening,
    stored,
)
from mvc.io.files import WriteFile
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.names import printable
from mvc.repo.commit.request import Change

__all__ = ["MvcFileSystem"]

_BLOCK = 1 << 20
_CHECKPOINT = re.compile(r"__[0-9]+_[0-9]+\.distcp|(__[0-9]+)?\.metadata(\.tmp)?")
"""What torch.distributed.checkpoint calls its files."""


class MvcFileSystem(AbstractFileSystem):
    """fsspec's interface to versions; names are absolute, ``/models@main/model.safetensors``.

    Errors are ``mvc.MvcError``; a path that a version lacks is FileNotFoundError as well, and
    writing to what is no branch PermissionError.
    """

    protocol = "mvc"
    root_marker = "/"
    transaction_type = OneCommit

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        text = str(stringify_path(path))
        for start in (f"{cls.protocol}://", f"{cls.protocol}::"):
            text = text.removeprefix(start)
        return (text.rstrip("/") or "/") if text.startswith("/") else absolute(text)

    # -- looking ---------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Size in bytes, type (``file`` or ``directory``), commit; of files the content's id."""
        del kwargs
        at, _, commit, manifest = self._look(path)
        found = described(at, commit, manifest)
        if found is None:
            raise absent(at)
        return found

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a folder of a version, by name. For a file, its own entry."""
        del kwargs
        at, _, commit, manifest = self._look(path)
        found = listed(at, commit, manifest)
        if not found and at.path:
            found = [self.info(path)]
        return found if detail else [entry["name"] for entry in found]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether the version has this path. False also if there is no such version."""
        del kwargs
        try:
            at, _, _, manifest = self._look(path)
        except (NotARepository, UnknownRevision):
            return False
        return at.path in manifest.by_path or is_folder(manifest, at.path)

    def ukey(self, path: str) -> str:
        """A text that changes when the content changes."""
        found = self.info(path)
        return str(found.get("id") or found["commit"])

    # -- reading and writing -----------------------------------------------------------------

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> io.RawIOBase:
        del block_size, cache_options, kwargs
        if mode == "rb":
            return self._open_read(path)
        if mode not in {"wb", "xb"}:
            raise WrongUsage(f"files of a version are written as a whole, not in mode {mode!r}")
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        return self._open_write(path, autocommit)

    def _open_read(self, path: str) -> PartsFile:
        at, here, _, manifest = self._look(path)
        entry = manifest.by_path.get(at.path)
        if entry is not None:
            return PartsFile(entry_parts(here.context, entry), at.name(at.path))
        if is_folder(manifest, at.path):
            raise IsADirectoryError(f"a folder: {at.name(at.path)}")
        _refuse_checkpoint(at.path)
        raise absent(at)

    def _open_write(self, path: str, autocommit: bool) -> Spool:
        at, here, branch, manifest = self._target(path)
        _refuse_checkpoint(at.path)
        check_new_path(manifest, at.path)
        plans = None if autocommit else self.transaction.plans

        def finish(file: WriteFile) -> None:
            change = Change(at.path, opening(file, at.path))
            plan = Planned(here, branch, (change,), f"write {at.path}")
            keep([plan]) if plans is None else plans.append(plan)

        spool = Spool(scratch(here.context), at.name(at.path), finish, later=not autocommit)
        if not autocommit:
            self.transaction.spools.append(spool)
        return spool

    # -- changing names ------------------------------------------------------------------------

    def rm_file(self, path: str) -> None:
        """A commit that removes this path."""
        self.rm(path)

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """One commit that removes these paths. ``recursive`` removes folders as well."""
        names = [path] if isinstance(path, str) else path
        self._keep([p for name in names for p in self._removals(name, recursive, maxdepth)])

    def _removals(self, path: str, recursive: bool, maxdepth: int | None) -> Iterator[Planned]:
        at = locate(self._strip_protocol(path))
        message = f"remove {at.path or 'everything'}"
        for name in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            at, here, branch, manifest = self._target(name)
            if at.path in manifest.by_path:
                yield Planned(here, branch, (Change(at.path, None),), message)
            elif not is_folder(manifest, at.path):
                raise absent(at)
            elif not recursive:
                raise IsADirectoryError(f"a folder: {at.name(at.path)}")

    def mv(
        self,
        path1: str,
        path2: str,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """One commit that renames a file or folder."""
        del kwargs
        source, here, branch, _ = self._target(path1)
        target, there, other, manifest = self._target(path2)
        if here is not there or branch != other:
            self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
            self.rm(path1, recursive=recursive, maxdepth=maxdepth)
            return
        moved = {
            entry.path: target.path + entry.path.removeprefix(source.path)
            for entry in manifest.entries
            if source.path and f"{entry.path}/".startswith(f"{source.path}/")
        }
        if not moved:
            raise absent(source)
        check_new_path(Manifest(()), target.path)
        changes = [Change(name, None) for name in moved if name not in moved.values()]
        for name, new in moved.items():
            check_new_path(Manifest(e for e in manifest.entries if e.path not in moved), new)
            changes.append(stored(here.context, manifest.by_path[name], new))
        message = f"move {source.path} to {target.path}"
        self._keep([Planned(here, branch, tuple(changes), message)])

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """A commit with a copy of a file, which may come from any version."""
        del kwargs
        source, here, _, manifest = self._look(path1)
        entry = manifest.by_path.get(source.path)
        target, there, branch, onto = self._target(path2)
        if entry is None and is_folder(manifest, source.path):
            return  # folders exist by their files
        if entry is None or here is not there:
            with self.open(path1, "rb") as old, self.open(path2, "wb") as new:
                while data := old.read(_BLOCK):
                    new.write(data)
            return
        check_new_path(onto, target.path)
        change = stored(here.context, entry, target.path)
        message = f"copy {source.path} to {target.path}"
        self._keep([Planned(there, branch, (change,), message)])

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Creates nothing: a folder exists if it has files. Checks that it could be written."""
        del create_parents, kwargs
        self.makedirs(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """As ``mkdir``."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        self._target(path)

    # -- helpers -------------------------------------------------------------------------------

    def _look(self, path: str) -> tuple[Location, Opened, str | None, Manifest]:
        """The location of a path, and the version that it names."""
        at = locate(self._strip_protocol(path))
        here = opened(at.root)
        commit, manifest = version_of(here.context, at)
        return at, here, None if commit is None else str(commit), manifest

    def _target(self, path: str) -> tuple[Location, Opened, str, Manifest]:
        """The location of a path, and the branch that a commit there moves."""
        at = locate(self._strip_protocol(path))
        here = opened(at.root)
        branch = branch_of(here.context, at)
        return at, here, branch, version_of(here.context, at)[1]

    def _keep(self, plans: Iterable[Planned]) -> None:
        self.transaction.plans.extend(plans) if self._intrans else keep(plans)


def _refuse_checkpoint(path: str) -> None:
    """Raises WrongUsage for a file of torch.distributed.checkpoint."""
    if _CHECKPOINT.fullmatch(path.rpartition("/")[2]):
        raise WrongUsage(
            "torch.distributed.checkpoint does not go through mvc:// paths: "
            "use MvcWriter and MvcReader of mvc.frameworks.dcp",
            hint="dcp.save(state, storage_writer=MvcWriter(repo)), "
            "dcp.load(state, storage_reader=MvcReader(repo, rev))",
        )


def is_folder(manifest: Manifest, path: str) -> bool:
    """Whether there are files below ``path``. The version itself is always a folder."""
    return not path or any(e.path.startswith(f"{path}/") for e in manifest.entries)


def described(at: Location, commit: str | None, manifest: Manifest) -> dict[str, Any] | None:
    """The file or folder at a location; None if the version has neither."""
    entry = manifest.by_path.get(at.path)
    if entry is not None:
        return _file(at, commit, entry)
    return _folder(at.name(at.path), commit) if is_folder(manifest, at.path) else None


def listed(at: Location, commit: str | None, manifest: Manifest) -> list[dict[str, Any]]:
    """The entries of a folder, by name. For a file, its own entry."""
    start = f"{at.path}/" if at.path else ""
    found: dict[str, dict[str, Any]] = {}
    for entry in manifest.entries:
        if entry.path == at.path:
            found[at.name(at.path)] = _file(at, commit, entry)
        elif entry.path.startswith(start):
            first, slash, _ = entry.path[len(start) :].partition("/")
            name = at.name(start + first)
            found[name] = _folder(name, commit) if slash else _file(at, commit, entry)
    return [found[name] for name in sorted(found)]


def absent(at: Location) -> NoSuchFile:
    """The error for a path that a version does not hold."""
    return NoSuchFile(
        f"{printable(at.prefix)} has no path {printable(at.path)}",
        hint="'mvc ls REVISION' lists what a version holds",
    )


def _file(at: Location, commit: str | None, entry: FileEntry) -> dict[str, Any]:
    return {
        "name": at.name(entry.path),
        "size": entry.size,
        "type": "file",
        "commit": commit,
        "id": entry.content_id.hex(),
        "format": entry.format,
    }


def _folder(name: str, commit: str | None) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory", "commit": commit}
