"""What can be seen of a repository, and whether its versions come back bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mvc.api.repository import Repository
from mvc.errors import StateForgotten, WeightsDropped
from mvc.ids import CommitId
from mvc.io.files import TEMPORARY
from mvc.repo.handle import Handle
from mvc.repo.lookup.availability import all_dropped
from mvc.store.packs.reader import PACK_HEADER, pack_numbers
from mvc.store.snapshot import PACKS
from tests.histories import assert_same
from tests.recipes import by_hand as recipes

Contents = Mapping[str, Any]
"""Path to bytes (a file) or to arrays (a Python state)."""

Checked = dict[tuple[str, bytes], Any]
"""What one look at a repository has compared already: path and content id to what was expected.

Versions share files. Where a manifest names the same content for a path of which the same is
expected, the same bytes would be recovered once more."""


class Lost(AssertionError):
    """Something is there that must not be, or is gone that must be there."""


@dataclass(frozen=True)
class State:
    """Everything that can be seen of a repository. Refs that were deleted are left out."""

    commits: tuple[CommitId, ...]
    refs: tuple[tuple[str, Any], ...]
    deployments: tuple[tuple[str, int, CommitId, bool], ...]
    forgotten: tuple[CommitId, ...] = ()
    dropped: tuple[CommitId, ...] = ()


def state_of(context: Handle) -> State:
    view = context.store.fresh()
    refs: dict[str, Any] = {}
    commits: list[CommitId] = []
    forgotten: set[CommitId] = set()
    for recorded in view.entries():
        commits += [commit.id for commit in recorded.entry.commits]
        forgotten |= recorded.entry.forgets
        for change in recorded.entry.refs:
            refs[change.name] = change.new
    for name, value in refs.items():
        if context.store.snapshot.ref(name) != value:
            raise Lost(
                f"the index says that {name} is {context.store.snapshot.ref(name)!r}, not {value!r}"
            )
    repo = Repository(context)
    deployed = sorted((d.target, d.time_ns, d.commit, d.retracted) for d in repo.deployments())
    return State(
        tuple(commits),
        tuple(sorted((name, value) for name, value in refs.items() if value is not None)),
        tuple(deployed),
        tuple(sorted(forgotten)),
        tuple(sorted(all_dropped(context.store))),
    )


def check_version(
    repo: Repository,
    state: State,
    commit: CommitId,
    contents: Contents,
    checked: Checked | None = None,
) -> None:
    """A version comes back bit for bit; one that is forgotten is refused as such."""
    if commit not in state.forgotten:
        if commit in state.dropped:
            _check_recipe(repo, state, commit)
        check_commit(repo, commit, contents, checked, dropped=commit in state.dropped)
        return
    try:
        repo.manifest(commit)
    except StateForgotten:
        return
    raise Lost(f"{commit.short} is forgotten, but its state is handed out")


def _check_recipe(repo: Repository, state: State, commit: CommitId) -> None:
    """All that a version without weights can be made again from is there."""
    recipe = recipes.check_carried(repo, commit)
    if set(recipe.needs) - set(state.commits) or set(recipe.needs) & set(state.forgotten):
        raise Lost(f"{commit.short} cannot be made again: it needs {recipe.needs}")


def check_commit(
    repo: Repository,
    commit: CommitId,
    contents: Contents,
    checked: Checked | None = None,
    *,
    dropped: bool = False,
) -> None:
    """Every path of a commit comes back bit for bit; those that were given up, or not at all."""
    found = repo.manifest(commit).by_path
    if set(found) != set(contents):
        raise Lost(f"{commit.short} has paths {sorted(found)}")
    for path, expected in contents.items():
        if checked is not None:
            key = path, found[path].content_id
            if checked.get(key) is expected:
                continue
            checked[key] = expected
        if isinstance(expected, bytes):
            target = repo.root / "restored.bin"
            repo.checkout(commit, path=[path], to=target, force=True)
            if target.read_bytes() != expected:
                raise Lost(f"{path} of {commit.short} has other bytes")
            target.unlink()
        else:
            try:
                arrays = repo.checkout(commit, path=path)
            except WeightsDropped:
                if not dropped or path != recipes.PATH:
                    raise
                if checked is not None:
                    del checked[key]
                continue
            check_arrays(arrays, expected)


def check_arrays(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    try:
        assert_same(found, expected)
    except AssertionError as error:
        raise Lost(f"other bits: {error}") from error


def reachable(context: Handle, state: State | None = None) -> set[CommitId]:
    """Commits that a ref or a deployment leads to, by the journal alone.

    ``state``: what ``state_of`` says now, where that is known already.
    """
    parents: dict[CommitId, tuple[CommitId, ...]] = {}
    for recorded in context.store.fresh().entries():
        parents.update((c.id, (*c.parents, *c.needs)) for c in recorded.entry.commits)
    state = state or state_of(context)
    waiting = [value for _, value in state.refs if isinstance(value, CommitId)]
    waiting += [commit for _, _, commit, _ in state.deployments]
    found: set[CommitId] = set()
    while waiting:
        commit = waiting.pop()
        if commit not in found:
            found.add(commit)
            waiting += parents[commit]
    return found


def check_swept(context: Handle) -> None:
    """After a collection nothing is left that nobody names."""
    store = context.store
    left = [name for name in store.fs.list(store.folder) if name.startswith(TEMPORARY)]
    ends: dict[int, int] = {}
    for recorded in context.store.fresh().entries():
        for region in recorded.entry.regions:
            end = region.start + region.length
            ends[region.pack] = max(end, ends.get(region.pack, 0))
    unnamed = [
        number
        for number in pack_numbers(store.fs, store.folder / PACKS)
        if ends.get(number, 0) <= len(PACK_HEADER)
    ]
    if left or unnamed:
        raise Lost(f"gc left {left} and packs {unnamed}")
