"""import: finds the checkpoints of a training run and commits them in the order of their times.

A file becomes a version of one tracked path. A folder whose files belong together
(``checkpoint-500``) becomes one version with all of its files. A checkpoint that was imported
before is found by content and time, so import can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct

from mvc.errors import InvalidTime, NothingToCommit, UnknownPath, WrongUsage
from mvc.ids import CommitId
from mvc.io.files import FileIdentity, FileSystem
from mvc.model.names import check_path, printable
from mvc.repo.context import Context
from mvc.repo.deployments import deploy as record_deployment
from mvc.repo.deployments import of_commit
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.times import check_moment, parse_time
from mvc.repo.worktree.worktree import dead_link, entry_at, files_in, sound_files_in
from mvc.store.index import keys
from mvc.types import Progress

_EXTENSIONS = (
    ".pth.tar", ".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".jit", ".ptl",
    ".onnx", ".gguf", ".h5", ".hdf5", ".keras", ".tflite", ".msgpack",
)  # fmt: skip
# Files that training writes next to a model; alone they are no version.
_BESIDE = re.compile(r"(optimizer|scheduler|scaler|training_args|rng_state|random_states).*")
_SHARD = re.compile(r".+-\d+-of-\d+\.\w+")
_DIGITS = re.compile(r"(\d+)")
_TIME_RULES = "use 'mtime', or 'name:FORMAT' such as 'name:model-%Y%m%d-%H%M%S.pt'"


class Imported(Struct, frozen=True):
    """One checkpoint. ``kept`` is False if the version ``commit`` had its content before."""

    source: Path
    time_ns: int
    commit: CommitId
    kept: bool
    raw_bytes: int
    stored_bytes: int


def import_checkpoints(
    context: Context,
    sources: Sequence[Path],
    *,
    time: str = "mtime",
    deploy: str | None = None,
    path: str | None = None,
    message: str | None = None,
    progress: Progress | None = None,
    taken: Callable[[Imported], object] | None = None,
    left_out: list[Path] | None = None,
) -> list[Imported]:
    """See ``Repository.import_checkpoints``. All sources are listed before the first commit.

    Raises WrongUsage, InvalidTime, UnknownPath, BadModelFile.
    """
    context.fresh()
    found = find_checkpoints(context.store.fs, sources, time, path, left_out=left_out)
    if not found:
        named = ", ".join(str(source) for source in sources[:3])
        raise WrongUsage(f"no model files in {named}", hint="name files, or a folder of them")
    total, fresh = sum(c.size for c in found), head(context).commit is None
    run = _Import(context, deploy, message, progress, total=total, fresh=fresh)
    result = []
    for checkpoint in found:
        result.append(run.take(checkpoint))
        if taken is not None:
            taken(result[-1])
    return result


class _Import(Struct):
    """A running import. ``total`` and ``done``: bytes of checkpoints."""

    context: Context
    deploy: str | None
    message: str | None
    progress: Progress | None
    total: int
    fresh: bool
    done: int = 0
    before: frozenset[str] = frozenset()
    previous: CommitId | None = None

    def take(self, checkpoint: Checkpoint) -> Imported:
        known = None if self.fresh else self._known(checkpoint)
        result = self._already(checkpoint, known) if known else self._commit(checkpoint)
        self.before = frozenset(checkpoint.files)
        self.previous = result.commit
        self.done += checkpoint.size
        return result

    def _commit(self, checkpoint: Checkpoint) -> Imported:
        from mvc.repo.commit.commit import commit
        from mvc.repo.commit.request import Change, CommitRequest
        from mvc.repo.content.sources import open_file

        fs = self.context.store.fs
        changes = [
            Change(name, partial(open_file, fs, place, name, strict=True))
            for name, place in checkpoint.files.items()
        ]
        changes += [Change(name, None) for name in sorted(self.before - checkpoint.files.keys())]
        request = CommitRequest(
            changes,
            self.message or f"import {checkpoint.source.name}",
            deploy=self.deploy,
            deploy_time_ns=None if self.deploy is None else checkpoint.time_ns,
            time_ns=checkpoint.time_ns,
        )
        try:
            kept = commit(self.context, request, self._report)
        except NothingToCommit:
            tip = head(self.context).commit
            if tip is None:
                raise
            return self._already(checkpoint, tip)
        return Imported(
            checkpoint.source,
            checkpoint.time_ns,
            kept.id,
            True,
            raw_bytes=kept.raw_bytes,
            stored_bytes=kept.stored_bytes,
        )

    def _report(self, done: int, _: int, what: str) -> None:
        if self.progress is not None:
            self.progress(min(self.done + done, self.total), self.total, what)

    def _already(self, checkpoint: Checkpoint, commit: CommitId) -> Imported:
        """For a content that is stored already: records its deployment if that is missing."""
        target, time_ns = self.deploy, checkpoint.time_ns
        if target is not None:
            known = of_commit(self.context.store.snapshot, commit)
            if not any(d.time_ns == time_ns and d.target == target for d in known):
                record_deployment(self.context, commit, target, time_ns)
        return Imported(
            checkpoint.source, time_ns, commit, False, raw_bytes=checkpoint.size, stored_bytes=0
        )

    def _known(self, checkpoint: Checkpoint) -> CommitId | None:
        """A commit with these files that has the checkpoint's time or is the previous import."""
        name, place = next(iter(checkpoint.files.items()))
        first = entry_at(self.context, place, name)
        mark = bytes(first.state_id)[: keys.ID_BYTES]
        snapshot = self.context.store.snapshot
        wanted: dict[str, bytes] = {}
        for at in snapshot.marked(mark):
            for commit in snapshot.entry(at).entry.commits:
                if commit.time_ns != checkpoint.time_ns and commit.id != self.previous:
                    continue
                wanted = wanted or {
                    n: entry_at(self.context, p, n).content_id for n, p in checkpoint.files.items()
                }
                there = (manifests.if_kept(self.context, commit.id) or manifests.EMPTY).by_path
                if all(n in there and there[n].content_id == id_ for n, id_ in wanted.items()):
                    return commit.id
        return None


class Checkpoint(Struct, frozen=True):
    """A version to commit: its files by tracked name. ``time_ns`` since 1970, ``size`` in bytes."""

    source: Path
    time_ns: int
    files: Mapping[str, Path]
    size: int


def find_checkpoints(
    fs: FileSystem,
    sources: Sequence[Path],
    time: str,
    path: str | None,
    left_out: list[Path] | None = None,
) -> list[Checkpoint]:
    """The checkpoints in ``sources``, oldest first; those of equal time in the order of names.

    A folder means its model files and its subfolders with model files; its other files and
    subfolders are added to ``left_out``, except hidden ones. Raises UnknownPath for a source that
    does not exist and for a symbolic link that leads nowhere, WrongUsage if files of several
    formats would become one path, InvalidTime if a name has no time.
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
            skipped = _look_into(fs, source, singles, folders)
            if left_out is not None:
                left_out += skipped
    named = prefix or _default_name(singles)
    found = [Checkpoint(p, clock.of(p, i.mtime_ns), {named: p}, i.size) for p, i in singles.items()]
    found += [_folder(fs, folder, clock, prefix) for folder in folders]
    return sorted(found, key=lambda c: (c.time_ns, _natural(c.source.name)))


def _look_into(
    fs: FileSystem, folder: Path, singles: dict[Path, FileIdentity], folders: dict[Path, None]
) -> list[Path]:
    """Finds the checkpoints in a folder; returns what is none, by its name."""
    skipped = []
    for name in fs.list(folder):
        place = folder / name
        identity = None if name.startswith(".") else fs.stat(place)
        if identity is None:
            if _is_model(name) and fs.stat(place, follow=False) is not None:
                raise dead_link(str(place))
            continue
        if identity.is_dir and any(_is_model(file.name) for file in files_in(fs, place)):
            folders[place] = None
        elif identity.is_file and _is_model(name) and not _BESIDE.fullmatch(name):
            singles[place] = identity
        else:
            skipped.append(place)
    return skipped


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
    for file in sound_files_in(fs, folder):
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
                moment = moment.astimezone(UTC) if moment.tzinfo is not None else moment
                return parse_time(moment.isoformat(), now_ns=0)
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


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts epoch2 before epoch10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in _DIGITS.split(name) if p]
