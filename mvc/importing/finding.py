"""Finds checkpoints on disk. Decides which files form a version, and which versions form a history.

A single file becomes a version with one file. A folder of related files (``checkpoint-500``)
becomes one version. A folder of numbered checkpoints is a training run, which becomes a separate
history. A model next to the checkpoints is the run's final model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from msgspec import Struct, field

from mvc.errors import InvalidName, InvalidTime, UnknownPath, WrongUsage
from mvc.files import FoundFile, dead_link, external_files, files_in, is_link, sorted_files_in
from mvc.limits import MAX_REF_BYTES
from mvc.names import MODELS, check_path, check_ref, printable
from mvc.system import FileIdentity, FileSystem
from mvc.times import check_moment, parse_time

# Files that a training writes next to a model. Without a model, such files are no version.
_TRAINING_FILES = re.compile(
    r"(optimizer|scheduler|scaler|training_args|rng_state|random_states).*"
)
_SHARD = re.compile(r".+-\d+-of-\d+\.\w+")
_NUMBERED = re.compile(
    r"(.*[-_.])?(checkpoint|ckpt|global_step|step|epoch|iter|iteration)[-_=.]?\d+([-_=.].*)?",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"(\d+)")
_DEEPEST = 12  # levels of folders searched for runs
_TIME_RULES = "use 'mtime', or 'name:FORMAT' such as 'name:model-%Y%m%d-%H%M%S.pt'"


class Checkpoint(Struct, frozen=True):
    """A version to commit.

    ``time_ns``: nanoseconds since 1970. ``files``: maps paths in the repository to paths on disk.
    ``size``: total number of bytes of the files.
    """

    source: Path
    time_ns: int
    files: Mapping[str, Path]
    size: int


class FoundHistory(Struct, frozen=True):
    """Consecutive checkpoints, oldest first.

    ``run``: the training's name, or empty. ``branch``: the branch to commit to; None for the
    current branch.
    """

    branch: str | None
    run: str
    checkpoints: tuple[Checkpoint, ...]


def find_histories(
    fs: FileSystem,
    sources: Sequence[Path],
    time: str,
    path: str | None,
    left_out: list[Path] | None = None,
) -> list[FoundHistory]:
    """The histories in ``sources``. Checkpoints of equal time are sorted by name.

    The model files of a folder, and its subfolders with model files, become one history. Each
    subfolder that is a training run becomes a separate history. All other paths, except hidden
    files, are added to ``left_out``. Raises UnknownPath for a missing source or a dead link;
    WrongUsage if files of several formats would become one path; InvalidTime if a name has no time.
    """
    maker = _Maker(fs, _Clock(time), None if path is None else PurePosixPath(path).as_posix())
    sources = _each_once(fs, sources)
    plain, runs = _Found(), list[tuple[str, _Found]]()
    for source in sources:
        identity = fs.stat(source)
        if identity is None:
            raise UnknownPath(f"there is no file or folder {printable(str(source))}")
        if not identity.is_dir:
            plain.singles[source] = identity
        else:
            run = _search(fs, source)
            if run.is_run:
                runs.append((source.resolve().name, run))
            elif _is_checkpoint(fs.list(source)):
                plain.folders[source] = None
                plain.skipped += _names_and_links(fs, source)[1]
            else:
                plain.add(run)
            runs += [(place.relative_to(source).as_posix(), inner) for place, inner in run.runs]
    if len(runs) == 1 and runs[0][1].at in sources and plain.has_versions:
        plain.add(runs.pop()[1])
    histories = [FoundHistory(None, "", maker.checkpoints(plain))] if plain.has_versions else []
    is_only_history = not histories and len(runs) == 1 and runs[0][1].at in sources
    used_names: set[str] = set()
    for name, run_files in runs:
        branch = _branch_name(name, used_names)
        checkpoints = maker.checkpoints(run_files)
        histories.append(FoundHistory(None if is_only_history else branch, branch, checkpoints))
    if left_out is not None:
        used = {path for h in histories for c in h.checkpoints for path in c.files.values()}
        skipped = [
            *plain.skipped,
            *(path for _, run in runs for path in run.left_out(fs)),
        ]
        left_out += [path for path in skipped if path not in used]
    return histories


# -- searching folders -----------------------------------------------------------------------


def _each_once(fs: FileSystem, sources: Sequence[Path]) -> list[Path]:
    """``sources`` without repeated folders. If a folder and a link to it are named, the link is
    omitted.
    """
    chosen: dict[Path | tuple[int, int], Path] = {}
    for source in sources:
        identity = fs.stat(source)
        is_folder = identity is not None and identity.is_dir
        key = (identity.device, identity.inode) if identity is not None and is_folder else source
        if key not in chosen or (is_folder and is_link(fs, chosen[key])):
            chosen[key] = source
    return list(chosen.values())


class _Found(Struct):
    """The content of a folder: model files, folders that are versions, and training runs."""

    at: Path | None = None
    singles: dict[Path, FileIdentity] = field(default_factory=dict)
    folders: dict[Path, None] = field(default_factory=dict)
    runs: list[tuple[Path, _Found]] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)

    def add(self, other: _Found) -> None:
        self.singles |= other.singles
        self.folders |= other.folders
        self.skipped += other.skipped

    @property
    def has_versions(self) -> bool:
        return bool(self.singles or self.folders)

    @property
    def has_final_model(self) -> bool:
        """Whether a run has a model file next to its folders of checkpoints."""
        return self.is_run and bool(self.folders and self.singles)

    def left_out(self, fs: FileSystem) -> list[Path]:
        """The paths that belong to no version.

        Files next to a final model belong to the version of this model.
        """
        if not self.has_final_model:
            return self.skipped
        identities = ((place, fs.stat(place)) for place in self.skipped)
        return [place for place, identity in identities if identity is None or identity.is_dir]

    @property
    def is_run(self) -> bool:
        """Whether the folder has numbered checkpoints: at least two files, or one folder."""
        files = [place for place in self.singles if _NUMBERED.fullmatch(place.name)]
        return len(files) > 1 or any(_NUMBERED.fullmatch(folder.name) for folder in self.folders)


def _search(fs: FileSystem, folder: Path, deep: int = 0) -> _Found:
    """The versions and runs in a folder, and the paths to skip."""
    files = _Found(folder)
    for name in fs.list(folder):
        place = folder / name
        identity = None if name.startswith(".") else fs.stat(place)
        if identity is None:
            if _is_model(name) and fs.stat(place, follow=False) is not None:
                raise dead_link(str(place))
        elif identity.is_dir and not is_link(fs, place):
            _add_folder(fs, place, files, deep + 1)
        elif identity.is_file and _is_model(name) and not _TRAINING_FILES.fullmatch(name):
            files.singles[place] = identity
        else:
            files.skipped.append(place)
    return files


def _add_folder(fs: FileSystem, place: Path, files: _Found, deep: int) -> None:
    """Adds a subfolder as a version, a run, a folder of runs, or none of these."""
    inside = _Found() if deep > _DEEPEST else _search(fs, place, deep)
    if inside.is_run:
        files.runs.append((place, inside))
    elif not inside.runs:
        names, links = _names_and_links(fs, place)
        if any(_is_model(name) for name in names):
            files.folders[place] = None
            files.skipped += links
        else:
            files.skipped.append(place)
    else:
        files.skipped += [*inside.singles, *inside.folders, *inside.skipped]
    files.runs += inside.runs


def _names_and_links(fs: FileSystem, folder: Path) -> tuple[list[str], list[Path]]:
    """The names of the files of a folder; and its links to folders, which belong to no version."""
    linked: set[str] = set()
    names = [file.name for file in files_in(fs, folder, linked=linked)]
    return names, [folder / name for name in sorted(linked)]


def _is_checkpoint(names: Sequence[str]) -> bool:
    """Whether a folder is one version: it has shards of a model, or a trainer's state."""
    return any(
        _SHARD.fullmatch(n) or n.endswith(".index.json") or n == "trainer_state.json" for n in names
    )


def _is_model(name: str) -> bool:
    return name.lower().endswith(MODELS)


def _branch_name(name: str, used_names: set[str]) -> str:
    """A valid branch name similar to a run's folder, and not in ``used_names``."""
    plain = name.removesuffix("/checkpoints")
    parts = re.sub(r"[^A-Za-z0-9._+/-]+", "-", plain).split("/")
    wanted = "/".join(part.strip(".-").replace("..", ".") or "run" for part in parts)
    wanted = wanted[: MAX_REF_BYTES - 10].rstrip("./-") or "run"
    try:
        check_ref("branch", wanted)
    except InvalidName:  # the name could be an id, or is HEAD
        wanted = f"run-{wanted.removesuffix('.lock')}"
    chosen, number = wanted, 1
    while chosen in used_names:
        number += 1
        chosen = f"{wanted}-{number}"
    used_names.add(chosen)
    return chosen


# -- versions --------------------------------------------------------------------------------


class _Maker(Struct, frozen=True):
    """Makes a ``Checkpoint`` for each version. ``clock`` determines the times.

    ``prefix``: the tracked path of single files, or the tracked folder for the files of a
    checkpoint folder; None for the default.
    """

    fs: FileSystem
    clock: _Clock
    prefix: str | None

    def checkpoints(self, source: _Found) -> tuple[Checkpoint, ...]:
        """The versions of a folder, including a run's final model, oldest first."""
        if self.prefix is not None:
            check_path(self.prefix)
        result = [self._folder(folder, self._inside(folder)) for folder in source.folders]
        if source.at is not None and source.has_final_model:
            files = self._inside(source.at)
            result.append(self._folder(source.at, [file for file in files if "/" not in file.name]))
        else:
            result += self._files(source.singles)
        return tuple(sorted(result, key=lambda c: (c.time_ns, natural(c.source.name))))

    def _inside(self, folder: Path) -> list[FoundFile]:
        return sorted_files_in(self.fs, folder, linked=set())

    def _files(self, singles: Mapping[Path, FileIdentity]) -> Iterator[Checkpoint]:
        named = self.prefix or _default_name(singles)
        for place, identity in singles.items():
            time_ns = self.clock.of(place, identity.mtime_ns)
            is_graph = _extension(place.name) == ".onnx"
            external = external_files(self.fs, place) if is_graph else {}
            names = {check_path(str(PurePosixPath(named).with_name(b.name))): b for b in external}
            size = identity.size + sum(file.size for file in external.values())
            yield Checkpoint(place, time_ns, {**names, named: place}, size)

    def _folder(self, folder: Path, inside: Sequence[FoundFile]) -> Checkpoint:
        files: dict[str, Path] = {}
        size = newest = 0
        for file in inside:
            name = check_path(f"{self.prefix}/{file.name}" if self.prefix else file.name)
            files[name] = folder / file.name
            size += file.identity.size
            newest = max(newest, file.identity.mtime_ns)
        return Checkpoint(folder, self.clock.of(folder, newest), files, size)


def _extension(name: str) -> str:
    lower = name.lower()
    return next((e for e in MODELS if lower.endswith(e)), PurePosixPath(lower).suffix)


def _default_name(singles: Mapping[Path, FileIdentity]) -> str:
    extensions = sorted({_extension(place.name) for place in singles})
    if len(extensions) > 1:
        raise WrongUsage(
            f"the checkpoints are of several formats: {', '.join(extensions)}",
            hint="import one format at a time, or name the tracked path",
        )
    return "model" + "".join(extensions)


class _Clock:
    """Determines the time of a checkpoint by the rule of ``--time``."""

    def __init__(self, rule: str) -> None:
        kind, _, self._format = rule.partition(":")
        if rule != "mtime" and (kind != "name" or "%" not in self._format):
            raise WrongUsage(f"{printable(rule)!r} is not a rule for times", hint=_TIME_RULES)
        if kind == "name" and not _names_year(self._format):
            raise WrongUsage(
                f"{printable(self._format)!r} has no year: every time would be in 1900",
                hint="name year, month and day, such as 'name:model-%Y%m%d-%H%M%S.pt'",
            )

    def of(self, place: Path, mtime_ns: int) -> int:
        if not self._format:
            return check_moment(mtime_ns, f"the time of {place.name}")
        for name in (place.name, place.name.removesuffix(_extension(place.name))):
            if (moment := _strptime(name, self._format)) is not None:
                moment = moment.astimezone(UTC) if moment.tzinfo is not None else moment
                try:
                    return parse_time(moment.isoformat(), now_ns=0)
                except InvalidTime as error:
                    where = printable(str(place))
                    raise InvalidTime(f"{where}: {error.message}", hint=error.hint) from error
        raise InvalidTime(
            f"no time of the form {printable(self._format)!r} in {printable(place.name)!r}",
            hint="the form must match the whole name; %% means a percent sign",
        )


def _names_year(form: str) -> bool:
    """Whether the format has a year. Also True for %s and %+, which ``_strptime`` refuses later."""
    directives = set(re.findall(r"%[-_0^#]?(.)", form))
    return bool(directives & set("YyGcxs+")) or not directives - {"%"}


def _strptime(name: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(name, form)
    except re.error:
        raise WrongUsage(f"{printable(form)!r} is not a time format", hint=_TIME_RULES) from None
    except ValueError as error:
        if "directive" in str(error) or "stray" in str(error):
            raise WrongUsage(
                f"{printable(form)!r} is not a time format: {error}", hint=_TIME_RULES
            ) from None
        return None


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts epoch2 before epoch10."""
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in _DIGITS.split(name) if p]
