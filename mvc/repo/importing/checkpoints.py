"""Finds the checkpoints of a training run on disk, and their order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from mvc.errors import InvalidTime, UnknownPath, WrongUsage
from mvc.io.files import FileIdentity, FileSystem
from mvc.model.names import check_path, printable
from mvc.repo.times import check_moment, parse_time
from mvc.repo.worktree.worktree import files_in

__all__ = ["Checkpoint", "find_checkpoints"]

_EXTENSIONS = (".pth.tar", ".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy")
# Files that training writes next to a model; alone they are no version.
_BESIDE = re.compile(r"(optimizer|scheduler|scaler|training_args|rng_state|random_states).*")
_SHARD = re.compile(r".+-\d+-of-\d+\.\w+")
_DIGITS = re.compile(r"(\d+)")
_TIME_RULES = "use 'mtime', or 'name:FORMAT' such as 'name:model-%Y%m%d-%H%M%S.pt'"


@dataclass(frozen=True)
class Checkpoint:
    """A version to commit: its files by tracked name. ``time_ns`` since 1970, ``size`` in bytes."""

    source: Path
    time_ns: int
    files: Mapping[str, Path]
    size: int


def find_checkpoints(
    fs: FileSystem, sources: Sequence[Path], time: str, path: str | None
) -> list[Checkpoint]:
    """The checkpoints in ``sources``, oldest first; those of equal time in the order of names.

    A folder means its model files and its subfolders with model files. Raises UnknownPath for a
    source that does not exist, WrongUsage if files of several formats would become one path,
    InvalidTime if a name has no time.
    """
    clock = _Clock(time)
    prefix = None if path is None else check_path(PurePosixPath(path).as_posix())
    singles: dict[Path, FileIdentity] = {}
    folders: dict[Path, None] = {}
    for source in sources:
        identity = fs.stat(source)
        if identity is None:
            raise UnknownPath(f"there is no file or folder {printable(str(source))}")
        if not identity.is_dir:
            singles[source] = identity
        elif _is_checkpoint(fs.list(source)):
            folders[source] = None
        else:
            _look_into(fs, source, singles, folders)
    named = prefix or _default_name(singles)
    found = [Checkpoint(p, clock.of(p, i.mtime_ns), {named: p}, i.size) for p, i in singles.items()]
    found += [_folder(fs, folder, clock, prefix) for folder in folders]
    return sorted(found, key=lambda c: (c.time_ns, _natural(c.source.name)))


def _look_into(
    fs: FileSystem, folder: Path, singles: dict[Path, FileIdentity], folders: dict[Path, None]
) -> None:
    for name in fs.list(folder):
        place = folder / name
        identity = None if name.startswith(".") else fs.stat(place)
        if identity is None:
            continue
        if identity.is_dir:
            if any(_is_model(file.name) for file in files_in(fs, place)):
                folders[place] = None
        elif identity.is_file and _is_model(name) and not _BESIDE.fullmatch(name):
            singles[place] = identity


def _is_checkpoint(names: Sequence[str]) -> bool:
    """Whether a folder is one version: it has shards, or the state of a trainer."""
    return any(
        _SHARD.fullmatch(n) or n.endswith(".index.json") or n == "trainer_state.json" for n in names
    )


def _is_model(name: str) -> bool:
    return name.lower().endswith(_EXTENSIONS)


def _extension(name: str) -> str:
    lower = name.lower()
    return next((e for e in _EXTENSIONS if lower.endswith(e)), PurePosixPath(lower).suffix)


def _default_name(singles: Mapping[Path, FileIdentity]) -> str:
    extensions = sorted({_extension(place.name) for place in singles})
    if len(extensions) > 1:
        raise WrongUsage(
            f"the checkpoints are of several formats: {', '.join(extensions)}",
            hint="import one format at a time, or give the tracked path",
        )
    return "model" + "".join(extensions)


def _folder(fs: FileSystem, folder: Path, clock: _Clock, prefix: str | None) -> Checkpoint:
    files: dict[str, Path] = {}
    size = newest = 0
    for file in sorted(files_in(fs, folder), key=lambda f: f.name):
        name = check_path(f"{prefix}/{file.name}" if prefix else file.name)
        files[name] = folder / file.name
        size += file.identity.size
        newest = max(newest, file.identity.mtime_ns)
    return Checkpoint(folder, clock.of(folder, newest), files, size)


class _Clock:
    """Reads a checkpoint's time by the rule of ``--time``."""

    def __init__(self, rule: str) -> None:
        kind, _, self._format = rule.partition(":")
        if rule != "mtime" and (kind != "name" or "%" not in self._format):
            raise WrongUsage(f"{printable(rule)!r} is not a way to tell times", hint=_TIME_RULES)
        if kind == "name" and not _names_date(self._format):
            raise WrongUsage(
                f"{printable(self._format)!r} names no date: every time would be in 1900",
                hint="name year, month and day, such as 'name:model-%Y%m%d-%H%M%S.pt'",
            )

    def of(self, place: Path, mtime_ns: int) -> int:
        if not self._format:
            return check_moment(mtime_ns, f"that of {place.name}")
        names = (place.name, place.name.removesuffix(_extension(place.name)))
        for name in names:
            if (moment := _strptime(name, self._format)) is not None:
                return _to_ns(moment)
        raise InvalidTime(
            f"no time of the form {printable(self._format)!r} in {printable(place.name)!r}",
            hint="the form must fit the whole name; %% stands for a percent sign",
        )


def _names_date(form: str) -> bool:
    """Whether the format has a year. Unknown directives such as %s are refused later."""
    directives = set(re.findall(r"%[-_0^#]?(.)", form))
    return bool(directives & set("YyGcxs+")) or not directives - {"%"}


def _strptime(name: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(name, form)
    except re.error:
        raise WrongUsage(f"{printable(form)!r} is no time format", hint=_TIME_RULES) from None
    except ValueError as error:
        if "directive" in str(error) or "stray" in str(error):
            raise WrongUsage(
                f"{printable(form)!r} is no time format: {error}", hint=_TIME_RULES
            ) from None
        return None


def _to_ns(moment: datetime) -> int:
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return parse_time(moment.isoformat(), now_ns=0)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts epoch2 before epoch10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in _DIGITS.split(name) if p]
