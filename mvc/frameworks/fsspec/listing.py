"""What lies where in a version, as fsspec describes it. Folders exist by their files."""

from __future__ import annotations

from typing import Any

from mvc.frameworks.fsspec.location import Location, NoSuchFile
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.names import printable

__all__ = ["absent", "described", "is_folder", "listed"]


def is_folder(manifest: Manifest, path: str) -> bool:
    """Whether files lie below ``path``; the version itself is a folder in any case."""
    return not path or any(e.path.startswith(f"{path}/") for e in manifest.entries)


def described(at: Location, commit: str | None, manifest: Manifest) -> dict[str, Any] | None:
    """The file or folder at a location; None if the version has neither."""
    entry = manifest.by_path.get(at.path)
    if entry is not None:
        return _file(at, commit, entry)
    return _folder(at.name(at.path), commit) if is_folder(manifest, at.path) else None


def listed(at: Location, commit: str | None, manifest: Manifest) -> list[dict[str, Any]]:
    """What lies in a folder, by name; the file itself for a file."""
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
