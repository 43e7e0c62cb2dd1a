"""Random histories of two branches that merge each other, against dictionaries."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.repo.commit.request import CommitOptions
from mvc.state import StateFile
from mvc.testing import UnsyncedFS
from tests.counters import count

BRANCHES = ("main", "side")
MODELS = ("model.safetensors", "parts/head.safetensors")
NOTES = ("notes.txt", "parts/config.json")
KEYS = ("lm_head.weight", "a", "b.bias")
DTYPES = ("float32", "float16", "int64")
RULES = (
    "mean", "sum", "ours", "theirs", "lm_head.*=ours", "a=mean", "*.json=theirs", "notes.txt=ours",
    "parts/*:a=sum", "parts/head.safetensors=theirs",
)  # fmt: skip

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class File:
    """``content``: the bytes of a note, or tensors by name; ``id``: of all bytes of the file."""

    id: bytes
    content: bytes | Tensors


@dataclass
class Model:
    """Versions in the order in which they were made: their parents and files."""

    parents: dict[CommitId, tuple[CommitId, ...]] = field(default_factory=dict)
    files: dict[CommitId, dict[str, File]] = field(default_factory=dict)

    def ancestors(self, version: CommitId) -> set[CommitId]:
        found, waiting = set(), [version]
        while waiting:
            at = waiting.pop()
            found.add(at)
            waiting += self.parents[at]
        return found

    def base(self, a: CommitId, b: CommitId) -> CommitId | None:
        common = self.ancestors(a) & self.ancestors(b)
        return next((each for each in reversed(self.parents) if each in common), None)


def of(rules: list[str], *names: str) -> str:
    for rule in reversed(rules):
        pattern, _, how = rule.rpartition("=")
        if not pattern or any(fnmatchcase(name, pattern) for name in names):
            return how
    return ""


def three_way(
    base: dict[str, File], ours: dict[str, File], theirs: dict[str, File], rules: list[str],
    scale: float,
) -> tuple[dict[str, bytes | Tensors], set[tuple[str, str | None]]]:  # fmt: skip
    """The contents by path, and the conflicts."""
    made: dict[str, bytes | Tensors] = {}
    conflicts: set[tuple[str, str | None]] = set()
    for path in {*base, *ours, *theirs}:
        b, o, t = (side.get(path) for side in (base, ours, theirs))
        ids = [None if each is None else each.id for each in (b, o, t)]
        if ids[1] == ids[2] or ids[2] == ids[0]:
            file: Any = o and o.content
        elif ids[1] == ids[0]:
            file = t and t.content
        elif o and t and isinstance(o.content, dict) and o.content and t.content:
            before = b.content if b and isinstance(b.content, dict) else {}
            file, inside = tensors(path, before, o.content, t.content, rules, scale)
            conflicts |= inside
            if not file and not inside:
                file = whole(path, o, t, rules, conflicts)
        else:
            file = whole(path, o, t, rules, conflicts)
        if file is not None:
            made[path] = file
    return made, conflicts


def whole(path: str, o: File | None, t: File | None, rules: list[str], conflicts: Any) -> Any:
    how = of(rules, path)
    if how not in {"ours", "theirs"}:
        conflicts.add((path, None))
    return (t and t.content) if how == "theirs" else (o and o.content)


def tensors(
    path: str, base: Tensors, ours: Tensors, theirs: Any, rules: list[str], scale: float
) -> tuple[Tensors, set[tuple[str, str | None]]]:
    made: Tensors = {}
    conflicts: set[tuple[str, str | None]] = set()
    for key in {*ours, *theirs}:
        b, o, t = (side.get(key) for side in (base, ours, theirs))
        if same(o, t) or same(t, b):
            value = o
        elif same(o, b):
            value = t
        else:
            how = of(rules, path, key, f"{path}:{key}")
            value = o if how == "ours" else t
            used = {"mean": [o, t], "sum": [b, o, t]}.get(how)
            if used is not None:
                value = computed(used, scale)
            if not how or (used is not None and value is None):
                conflicts.add((path, key))
        if value is not None:
            made[key] = value
    return made, conflicts


def computed(used: list[np.ndarray | None], scale: float) -> np.ndarray | None:
    forms = {None if a is None else (a.dtype, a.shape) for a in used}
    if len(forms) > 1 or used[0] is None or used[0].dtype.kind != "f":
        return None
    weights = [0.5, 0.5] if len(used) == 2 else [1 - 2 * scale, scale, scale]
    parts = [w * a.astype(np.float64) for w, a in zip(weights, used, strict=True) if a is not None]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.astype(used[0].dtype)


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class World:
    def __init__(self, root: Path) -> None:
        self.repo = Repository.init(root, fs=UnsyncedFS())
        self.model = Model()
        self.number = 0

    def commit(self, files: dict[str, Any]) -> None:
        """Commits what differs from HEAD: bytes, tensors, or None for a file that goes."""
        at = self.repo.head().commit
        given = {n: StateFile.of_bytes(f) if isinstance(f, bytes) else f for n, f in files.items()}
        options = CommitOptions(allow_empty=True)
        made = self.repo.commit(states=given, options=options).id
        before = {} if at is None else self.model.files[at]
        contents = {path: file.content for path, file in before.items()} | files
        self.note(made, () if at is None else (at,), contents)
        self.repo.checkout("HEAD", to=self.repo.root, force=True)

    def note(self, made: CommitId, parents: tuple[CommitId, ...], contents: dict[str, Any]) -> None:
        there = self.repo.manifest(made).by_path
        contents = {path: content for path, content in contents.items() if content is not None}
        assert there.keys() == contents.keys()
        self.model.parents[made] = parents
        self.model.files[made] = {p: File(there[p].content_id, c) for p, c in contents.items()}

    def merge(self, branch: str, rules: list[str], scale: float) -> str:
        repo, model = self.repo, self.model
        ours, theirs = repo.find(), repo.find(branch)
        base = model.base(ours, theirs)
        versions = len(list(repo.operations()))
        done = repo.merge(branch, strategy=rules, scale=scale)
        assert (done.old, done.base) == (ours, base)
        if base in {ours, theirs}:
            assert done.new == repo.find() == (theirs if base == ours else ours)
            assert not done.conflicts
            return "fast_forward" if base == ours else "up_to_date"
        assert base is not None
        three = [model.files[each] for each in (base, ours, theirs)]
        contents, conflicts = three_way(*three, rules, scale)
        assert {(each.path, each.key) for each in done.conflicts} == conflicts
        assert repo.status().clean
        if conflicts:
            assert repo.find() == ours == done.new and len(list(repo.operations())) == versions
            return "conflict"
        made = repo.version("HEAD")
        assert made.parents == (ours, theirs) and made.id == done.new
        assert made.params.get("merge.strategy", "") == " ".join(rules)
        self.note(made.id, made.parents, contents)
        self.check()
        return "merged"

    def edit(self, edits: list[Any]) -> None:
        """Commits edits: of a tensor of a file, or of a whole file, which may go."""
        have = {path: file.content for path, file in self.model.files[self.repo.find()].items()}
        files: dict[str, Any] = {}
        for path, key, value in edits:
            self.number += 1
            now = files.get(path, have.get(path))
            if path in NOTES:
                files[path] = f"note {self.number}".encode() if value else None
            elif key is None:
                files[path] = None
            elif value is None:
                files[path] = {k: v for k, v in (now or {}).items() if k != key} or None
            else:
                new = np.full(value[1], self.number / 7, np.float64).astype(value[0])
                new[0] = self.number
                files[path] = dict(sorted({**(now or {}), key: new}.items()))
        files = {path: file for path, file in files.items() if file is not None or path in have}
        if files:
            self.commit(files)

    def check(self) -> None:
        """HEAD has the tensors and bytes of the model, in the repository and on disk."""
        for path, file in self.model.files[self.repo.find()].items():
            if isinstance(file.content, bytes):
                assert (self.repo.root / path).read_bytes() == file.content
                continue
            state = self.repo.checkout(path=path)
            assert state.keys() == file.content.keys()
            assert all(same(state[key], file.content[key]) for key in state), path


ARRAYS = st.tuples(st.sampled_from(DTYPES), st.sampled_from([3, 3, 3, 5]))
EDITS = st.one_of(
    st.tuples(st.sampled_from(MODELS), st.sampled_from(KEYS), st.one_of(st.none(), ARRAYS)),
    st.tuples(st.sampled_from(MODELS), st.none(), st.none()),
    st.tuples(st.sampled_from(NOTES), st.none(), st.booleans()),
)
ROUNDS = st.tuples(
    st.lists(EDITS, max_size=3),
    st.lists(EDITS, max_size=3),
    st.sampled_from(BRANCHES),
    st.lists(st.sampled_from(RULES), max_size=3),
    st.sampled_from([1.0, 0.25]),
)


def run(rounds: list[Any]) -> Counter[str]:
    """Both branches go on in each round, and one merges the other."""
    seen = Counter[str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as d:
        world = World(Path(d) / "models")
        first = {key: np.arange(3, dtype=t) for key, t in zip(KEYS, DTYPES, strict=True)}
        world.commit({**dict.fromkeys(MODELS, first), **dict.fromkeys(NOTES, b"first")})
        world.repo.branch("side")
        for on_main, on_side, into, rules, scale in rounds:
            for branch, edits in zip(BRANCHES, (on_main, on_side), strict=True):
                if edits:
                    world.repo.switch(branch, force=True)
                    world.edit(edits)
            world.repo.switch(into, force=True)
            if not any(rule.endswith("sum") for rule in rules):
                scale = 1.0
            seen[world.merge(BRANCHES[1 - BRANCHES.index(into)], rules, scale)] += 1
        assert not world.repo.storage.fsck(full=True).problems
        world.repo.close()
    return seen


@pytest.mark.parametrize(
    "examples", [30, pytest.param(1000, marks=pytest.mark.long)]
)  # fmt: skip
def test_merges_are_as_of_dictionaries(examples: int) -> None:
    seen = Counter[str]()

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.lists(ROUNDS, min_size=1, max_size=4))
    def check(rounds: list[Any]) -> None:
        seen.update(run(rounds))

    check()
    count("merges of random histories", **seen)
    assert seen["merged"] and seen["conflict"]
