"""The stories: together they pass through every operation that changes a repository."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from mvc.api.repository import Repository
from mvc.repo import refs
from mvc.repo.commit.request import CommitOptions
from mvc.testing import FixedClock, Killed, KilledFS
from tests.adamw import training as trained
from tests.crash import maintenance
from tests.crash.story import Ignore, Story, Teller, again, begin, small
from tests.recipes import by_hand as recipes

maintaining = threading.Event()  # set while a story runs gc and the like


def versions(folder: Path, ignore: Ignore | None = None) -> Story:
    """init, commits of states and files, deploy, retract, tag, branch, rm, a race."""
    teller = begin(folder, ignore, watched=True)
    story, repo = teller.story, teller.repo
    first = teller.python(small(1), message="first")
    teller.python(small(1, 0.001), deploy="prod", metrics={"loss": 0.5})
    story.save_index()
    teller.file("weights.safetensors", save(small(2)))
    teller.do(lambda: repo.tag("v1"))
    teller.do(lambda: repo.branch("side"))
    teller.overtaken()
    story.save_index()
    teller.python(small(1, 0.002), options=CommitOptions(reset_point=True))
    teller.do(lambda: repo.deploy(first, "prod"))
    teller.python(small(1, 0.003))
    teller.do(lambda: repo.retract(None, "prod"))
    teller.file("notes.bin", np.random.default_rng(3).bytes(3000))
    story.save_index()
    teller.file("notes.bin", np.random.default_rng(3).bytes(2000) + b"end", deploy="edge")
    teller.python(small(1, 0.004))
    return story


def references(folder: Path, ignore: Ignore | None = None) -> Story:
    """branch, switch, checkout, rename, deletion, tag, undo of commits and of refs, redo."""
    teller = begin(folder, ignore)
    story, repo = teller.story, teller.repo
    first = teller.python(small(1))
    teller.python(small(1, 0.001))
    teller.do(lambda: repo.undo())  # the commit
    teller.do(lambda: repo.undo(next(iter(repo.operations())).number))  # and the undo
    story.save_index()
    teller.do(lambda: repo.branch("side", first.hex()))
    teller.do(lambda: repo.switch("side", force=True))
    teller.python(small(1, 0.002))
    teller.do(lambda: refs.rename_branch(repo.handle.store, "side", "other"))
    story.save_index()
    teller.do(lambda: repo.checkout("main", force=True, to=repo.root))
    teller.do(lambda: refs.delete_branch(repo.handle.store, "other", force=True))
    teller.do(lambda: repo.undo())  # of the deletion
    teller.do(lambda: repo.tag("v1"))
    teller.do(lambda: refs.delete_tag(repo.handle.store, "v1"))
    return story


def collection(folder: Path, ignore: Ignore | None = None) -> Story:
    """Versions that nothing leads to any more, a chain cut in its middle; gc three times."""
    teller = begin(folder, ignore)
    story, repo = teller.story, teller.repo
    commits = [teller.python(small(1, 0.001 * i)) for i in range(4)]
    teller.do(lambda: repo.branch("side", commits[1].hex()))
    story.save_index()
    teller.do(lambda: repo.switch("side", force=True))
    teller.do(lambda: refs.delete_branch(repo.handle.store, "main", force=True))
    collect(teller)
    teller.python(small(1, 0.01))
    teller.do(lambda: repo.undo())
    collect(teller)
    teller.python(small(1, 0.02), deploy="prod", pipeline="zlib:6")  # a feature
    teller.do(lambda: repo.handle.store.snapshot.rebuild_index())
    collect(teller)
    return story


def maintain(teller: Teller, act: Callable[[], object]) -> None:
    """Maintenance, and what it leaves in the index; most crashes are drawn while it runs."""
    story = teller.story
    before = story.fs.crash_points()
    maintaining.set()
    try:
        act()
    finally:
        maintaining.clear()
    story.acknowledge()
    story.note_index()
    story.marked += range(before, story.fs.crash_points())


def collect(teller: Teller) -> None:
    maintain(teller, lambda: maintenance.collect(teller.repo.handle))


def killed(folder: Path, ignore: Ignore | None = None) -> Story:
    """gc dies behind the rename of the journal, before that is durable; others go on.

    The commit that follows is acknowledged: so it must not be lost with the rename.
    """
    teller = begin(folder, ignore)
    story, repo = teller.story, teller.repo
    teller.python(small(1))
    teller.python(small(1, 0.001))
    teller.python(small(1, 0.002))
    teller.do(lambda: repo.undo())
    story.save_index()
    _collect_and_die(story)
    story.happened()
    other = Repository.open(story.root, fs=story.fs, clock=FixedClock(1_760_000_000_000_000_000))
    state = small(5)
    made = other.commit(state, path="other.safetensors")
    story.contents[made.id] = {
        "model.safetensors": small(1, 0.001), "other.safetensors": state,
    }  # fmt: skip
    before = story.fs.crash_points()
    story.acknowledge()
    other.close()
    teller.files = dict(story.contents[made.id])
    teller.python(small(1, 0.003))
    collect(teller)
    story.marked += range(before - 8, before + 2)
    return story


def _collect_and_die(story: Story) -> None:
    fs = KilledFS(lambda n, op, path: op == "sync_dir" and fs.seen("replace", "journal"), story.fs)
    dying = Repository.open(story.root, fs=fs, clock=story.repo.handle.store.clock)
    try:
        maintenance.collect(dying.handle)
    except Killed:
        return
    raise AssertionError("the collection was not killed")


def forgetting(folder: Path, ignore: Ignore | None = None) -> Story:
    """States forgotten by name, at the beginning and in the middle of a chain, and by rule."""
    teller = begin(folder, ignore)
    story, repo = teller.story, teller.repo
    commits = [teller.python(small(1, 0.001 * i)) for i in range(5)]
    story.save_index()
    teller.do(lambda: maintenance.forget_named(repo.handle, commits[0], commits[2]))
    collect(teller)
    teller.python(small(1, 0.01))
    teller.do(lambda: maintenance.keep_last(repo.handle, 2))
    collect(teller)
    teller.python(small(1, 0.02))
    return story


def repacking(folder: Path, ignore: Ignore | None = None) -> Story:
    """Reset points at an interval, one more, one less; commits between and behind."""
    teller = begin(folder, ignore)
    story, repo = teller.story, teller.repo
    commits = [teller.python(small(1, 0.001 * i)) for i in range(5)]
    story.save_index()
    maintain(teller, lambda: maintenance.repack(repo.handle, 2))
    teller.python(small(1, 0.01))
    maintain(teller, lambda: maintenance.repack(repo.handle, add=[commits[1]]))
    maintain(teller, lambda: maintenance.repack(repo.handle, remove=[commits[4]]))
    teller.python(small(1, 0.02))
    collect(teller)
    return story


def giving_up(folder: Path, ignore: Ignore | None = None) -> Story:
    """Weights given up for recipes, collected, stored again; only a need leads to the data."""
    teller = begin(folder, ignore)
    story, repo = teller.story, teller.repo
    base = teller.python(small(1))
    teller.do(lambda: repo.branch("data"))
    teller.do(lambda: repo.switch("data", force=True))
    data = teller.file("digits.bin", np.random.default_rng(3).bytes(3000))
    teller.do(lambda: repo.switch("main", force=True))
    del teller.files["digits.bin"]
    first = teller.trained(0.001, base, data)
    second = teller.trained(0.002, first, data)
    teller.do(lambda: refs.delete_branch(repo.handle.store, "data", force=True))
    teller.python(small(1, 0.003))
    story.save_index()
    maintain(teller, lambda: recipes.drop(repo, first, second))
    maintain(teller, lambda: recipes.store_again(repo, second, again))  # still there
    maintain(teller, lambda: recipes.drop(repo, second))
    collect(teller)
    teller.python(small(1, 0.004))
    maintain(teller, lambda: recipes.store_again(repo, first, again))
    maintain(teller, lambda: maintenance.repack(repo.handle, add=[first]))
    third = teller.trained(0.005, second, data)
    maintain(teller, lambda: recipes.drop(repo, third))
    collect(teller)
    return story


def training(folder: Path, ignore: Ignore | None = None) -> Story:
    """Steps of an optimizer; one in their middle is forgotten, the run is cut and goes on."""
    teller = begin(folder, ignore)
    repo = teller.repo
    commits = [teller.python(trained(step, 12), deploy="prod") for step in range(6)]
    assert repo.storage.predicted()
    teller.do(lambda: maintenance.forget_named(repo.handle, commits[2]))
    collect(teller)
    teller.python(trained(6, 12))
    maintain(teller, lambda: maintenance.repack(repo.handle, interval=3))
    teller.do(lambda: maintenance.keep_last(repo.handle, 3))
    collect(teller)
    teller.python(trained(7, 12))
    return teller.story


STORIES: dict[str, Callable[..., Story]] = {
    "versions": versions,
    "references": references,
    "collection": collection,
    "killed": killed,
    "forgetting": forgetting,
    "repacking": repacking,
    "giving up": giving_up,
    "training": training,
}
