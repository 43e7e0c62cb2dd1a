"""A repository whose versions are compared with what was committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mvc.api import CommitOptions, FileOptions, Repository, set_value
from mvc.errors import StateForgotten
from mvc.ids import CommitId
from mvc.system import FileSystem
from mvc.testing.process import fresh_process, open_repository

State = dict[str, Any]

_BASE = np.random.default_rng(5).standard_normal((50, 40)).astype(np.float32)


def weights(step: int) -> State:
    """A small state that drifts from step to step, with a tensor that stays."""
    return {"w": _BASE + np.float32(step * 1e-3), "step": np.array(step), "constant": _BASE[0]}


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """The same names, dtypes, shapes and bits; the same plain values."""
    theirs, ours = _flat(found), _flat(wanted)
    assert theirs.keys() == ours.keys()
    for name, value in ours.items():
        if not isinstance(value, np.ndarray | np.generic):
            assert theirs[name] == value, name
            continue
        back = np.asarray(theirs[name])
        assert (back.dtype, back.shape) == (value.dtype, value.shape), name
        assert back.tobytes() == value.tobytes(), name


def _flat(state: Any, name: str = "") -> dict[str, Any]:
    """Nested values by their place."""
    if isinstance(state, Mapping):
        items = [(f"{name}.{key}", value) for key, value in state.items()]
    elif isinstance(state, list | tuple):
        items = [(f"{name}.{i}", value) for i, value in enumerate(state)]
    else:
        return {name: state}
    return {place: each for at, value in items for place, each in _flat(value, at).items()}


class CheckedHistory:
    """A new repository with ``count`` versions, deployed, and more by ``commit``.

    ``make``: the state of each, by its number.

    ``ids`` are the versions in order; ``states``, ``files`` and ``objects`` (content ids) what
    each one holds. ``settings`` are written to the repository's file; ``options`` are those of
    every opening (``fs``, ``clock``, ``tuning``).
    """

    def __init__(
        self,
        root: Path,
        count: int = 0,
        *,
        make: Callable[[int], State] = weights,
        settings: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        self.root = root
        self._make = make
        self.options = options
        self.ids: list[CommitId] = []
        self.states: dict[CommitId, State] = {}
        self.files: dict[CommitId, dict[str, bytes]] = {}
        self.objects: dict[CommitId, set[bytes]] = {}
        self.gone: set[CommitId] = set()
        self._repo: Repository | None = None
        made = {name: options[name] for name in ("fs", "clock") if name in options}
        Repository.init(root, **made).close()
        for key, value in (settings or {}).items():
            set_value(FileSystem(), root / ".mvc/config.yaml", key, str(value))
        with Repository.open(root, **made) as repo:
            for _ in range(count):
                self.commit(repo=repo, deploy="prod")

    def open(self) -> Repository:
        """The repository, opened anew, as by a new process."""
        fresh_process()
        return open_repository(self.root, **self.options)

    @property
    def repo(self) -> Repository:
        """The repository, which stays open until ``close``."""
        if self._repo is None:
            self._repo = self.open()
        return self._repo

    def close(self) -> None:
        if self._repo is not None:
            self._repo.close()
            self._repo = None

    def commit(
        self,
        state: State | None = None,
        *,
        repo: Repository | None = None,
        reset_point: bool = False,
        **options: Any,
    ) -> CommitId:
        """Commits a state, by default the next one; ``options`` as of ``commit``.

        ``repo``: the opening that does it, by default the one that stays open.
        """
        given = self._make(len(self.ids)) if state is None else state
        if reset_point:
            options |= {"options": CommitOptions(reset_point=True)}
        made = (repo or self.repo).commit(given, **options).id
        self.states[made] = deepcopy(given)
        return self._noted(made, repo or self.repo)

    def commit_files(self, **options: Any) -> CommitId:
        """Commits the files that stand beside ``.mvc``."""
        paths = [path for path in sorted(self.root.iterdir()) if path.is_file()]
        made = self.repo.commit(paths, files=FileOptions(cwd=self.root), **options).id
        self.files[made] = {path.name: path.read_bytes() for path in paths}
        return self._noted(made, self.repo)

    def forget(self, *ids: CommitId, **rules: Any) -> set[CommitId]:
        """Forgets states, as ``repo.storage.forget`` does."""
        chosen = {commit.id for commit in self.repo.storage.forget(ids, **rules).commits}
        self.gone |= chosen
        return chosen

    @property
    def there(self) -> list[CommitId]:
        """The versions whose states were not forgotten."""
        return [id_ for id_ in self.objects if id_ not in self.gone]

    def lost(self, named: Iterable[CommitId] | None = None) -> set[bytes]:
        """Contents of the forgotten versions (of ``named``) that no other version has."""
        of = self.gone if named is None else set(named)
        ids = {each for id_ in of for each in self.objects[id_]}
        return ids - {each for id_ in self.there for each in self.objects[id_]}

    def check(self) -> None:
        """Every version comes back bit for bit, no forgotten one does; fsck finds nothing."""
        with self.open() as repo, TemporaryDirectory() as scratch:
            known = [id_ for id_ in self.gone if repo.handle.store.snapshot.has_commit(id_)]
            report = repo.storage.fsck(full=True)
            assert report.problems == ()
            assert report.forgotten == len(known)
            for id_ in self.there:
                self._check_one(repo, id_, Path(scratch) / id_.short)
            for id_ in known:
                try:
                    repo.manifest(id_)
                except StateForgotten:
                    continue
                raise AssertionError(f"{id_.short} came back")

    def _noted(self, id_: CommitId, repo: Repository) -> CommitId:
        manifest = repo.manifest(id_)
        entries = manifest.all_entries
        contents = {content.id for entry in entries for content in entry.contents}
        skeletons = {entry.skeleton for entry in entries if entry.skeleton is not None}
        self.objects[id_] = {*contents, *skeletons, manifest.id}
        self.ids.append(id_)
        return id_

    def _check_one(self, repo: Repository, id_: CommitId, scratch: Path) -> None:
        repo.version(id_)
        if id_ in self.states:
            assert_same(repo.checkout(id_), self.states[id_])
        if id_ in self.files:
            scratch.mkdir(parents=True)
            repo.checkout(id_, to=scratch)
            back = {path.name: path.read_bytes() for path in scratch.iterdir()}
            assert back == self.files[id_]
