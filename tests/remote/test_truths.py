"""What repositories know of each other: where branches were, states that come back or never do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mvc.api import Operation
from mvc.api.repository import Repository
from mvc.cli.commands.every_day.undo import moves
from mvc.errors import (
    RefConflict,
    StateForgotten,
    UnknownRevision,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import Root
from mvc.limits import MAX_REF_BYTES
from mvc.model.statement import AnnotationStatement, Tombstone
from mvc.remote.slices import encode_entries, sent_with
from mvc.remote.transport import Slice, Wanted
from mvc.remote.transports.folder import FolderTransport
from mvc.repo.history.log import LogOptions
from mvc.store.journal.entries import Entry, RefChange, StateMark
from tests.oracle import reader
from tests.oracle.holding import held_against
from tests.remote.kit.team import Team


def state(n: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(n).standard_normal((40, 40)).astype(np.float32)}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path, {f"v{n}": state(n) for n in range(4)}, bob=False)
    yield made
    made.close()


def can_read(repo: Repository, rev: object) -> bool:
    with contextlib.suppress(StateForgotten):
        return bool(repo.checkout(str(rev)))
    return False


# -- where the branches of a remote were -------------------------------------------------------


def test_a_remotes_branches_are_read_shown_and_keep_versions(pair: Team) -> None:
    bob = pair.clone("bob")
    assert [(r.name, r.commit) for r in bob.refs("remote")] == [("origin/main", pair.ids[3])]
    for name in ("origin/main", "remotes/origin/main"):
        assert bob.find(name) == bob.find("HEAD")
    assert bob.find("origin/main~2") == pair.ids[1]
    assert bob.log(limit=1)[0].refs == ("HEAD", "main", "origin/main")
    with pytest.raises(UnknownRevision, match="did you mean"):
        bob.find("origin/mian")
    bob.branch("origin/main", pair.ids[0])
    assert bob.find("origin/main") == pair.ids[0], "a branch of one's own comes first"
    bob.delete_ref("branch", "origin/main", force=True)
    bob.branch("mine")
    bob.delete_ref("branch", "mine")  # the remote's branch leads to it, too


def test_what_only_a_remotes_branch_leads_to_is_kept(pair: Team) -> None:
    bob = pair.clone("bob")
    newest = pair.ada.commit(state(9)).id
    pair.ada.push()
    bob.fetch()
    assert bob.log("HEAD", LogOptions(every=True))[0].refs == ("origin/main",)
    bob.storage.gc(grace="0")
    assert can_read(bob, newest)
    oracle = held_against(pair.root / "bob")
    assert oracle.refs["remotes/origin/main"] == newest
    assert bob.storage.fsck(full=True).sound
    bob.remotes.remove("origin")
    bob.storage.gc(grace="0")
    with pytest.raises(UnknownRevision):
        bob.find(str(newest))


def test_an_undo_passes_over_a_fetch(pair: Team) -> None:
    bob = pair.clone("bob")
    made = bob.commit(state(8)).id
    pair.ada.annotate("HEAD", note="theirs")
    pair.ada.commit(state(9))
    pair.ada.push()
    bob.fetch()
    fetched = next(o.number for o in bob.operations() if o.entry.operation == "fetch")
    with pytest.raises(RefConflict, match="data received from a remote remain here"):
        bob.undo(fetched)
    theirs = next(o.entry for o in bob.operations() if o.entry.of(AnnotationStatement))
    assert moves(Operation(0, theirs)) == "1 annotation"
    assert bob.undo().before.commit == made
    assert bob.head().commit == pair.ids[3]
    assert [a.note for a in bob.annotations(pair.ids[3])] == ["theirs"]


def test_the_longest_name_of_a_branch_is_followed(pair: Team) -> None:
    name, remote = "b" * (MAX_REF_BYTES - len("heads/")), "r" * 32
    pair.ada.branch(name)
    pair.ada.push(refs=[name])
    pair.ada.remotes.add(remote, pair.url)
    pair.ada.fetch(remote)
    assert pair.ada.find(f"{remote}/{name}") == pair.ids[3]
    assert reader.Repository(pair.root / "ada/.mvc").refs[f"remotes/{remote}/{name}"]
    assert pair.ada.storage.fsck().sound
    store, head = pair.ada.handle.store, pair.ids[3]
    change = RefChange("tags/" + "t" * 200, None, head)
    with pytest.raises(WrongUsage, match="longer than 200 bytes"):
        store.publish(lambda: Entry("tag", store.now_ns(), refs=(change,)))


# -- states that come back, or never do --------------------------------------------------------


def test_a_state_that_never_came_comes_later(pair: Team) -> None:
    bob = pair.clone("bob", states="last:1")
    assert [can_read(bob, id_) for id_ in pair.ids] == [False, False, False, True]
    assert bob.storage.receipts() == []
    assert bob.storage.fsck(full=True).absent == 3
    bob.storage.gc(grace="0")
    bob.fetch("origin", pair.ids[:2])
    assert [can_read(bob, id_) for id_ in pair.ids] == [True, True, False, True]
    report = bob.storage.fsck(full=True)
    assert (report.sound, report.forgotten, report.absent) == (True, 0, 1)
    assert held_against(pair.root / "bob").forgotten() == {pair.ids[2]}


def test_what_was_forgotten_by_rule_is_here_again(pair: Team) -> None:
    first, root = pair.ids[0], pair.ada.version(pair.ids[0]).root
    pair.ada.storage.forget(keep_last=1, reason="space")
    assert not can_read(pair.ada, first)
    store = pair.ada.handle.store
    again = (StateMark(first, "stored"),)
    store.publish(lambda: Entry("fetch", store.now_ns(), states=again))
    assert can_read(pair.ada, first)
    oracle = held_against(pair.root / "ada")
    assert oracle.forgotten() == set(pair.ids[1:3])
    (receipt,) = pair.ada.storage.receipts()
    (state_,) = (each for each in receipt.states if each.commit == first)
    assert (state_.root, state_.gone_ns, state_.again_ns is None) == (root, None, False)
    pair.ada.storage.gc(grace="0")
    assert can_read(pair.ada, first)
    report = pair.ada.storage.fsck(full=True)
    assert (report.sound, report.forgotten) == (True, 2)
    entry = next(o.entry for o in pair.ada.operations() if o.entry.says_of("stored"))
    assert moves(Operation(0, entry)) == "1 state stored"
    pair.ada.storage.forget(first, reason="asked for")
    store.publish(lambda: Entry("fetch", store.now_ns(), states=again))
    assert not can_read(pair.ada, first), "by name is final"
    assert first in reader.Repository(pair.root / "ada/.mvc").forgotten()


def test_what_was_forgotten_by_name_goes_everywhere(pair: Team) -> None:
    bob, eve = pair.clone("bob"), pair.clone("eve")
    first = pair.ids[0]
    pair.ada.storage.forget(first, reason="asked for")
    pair.ada.push()
    assert not can_read(pair.server, first)
    bob.fetch()
    assert not can_read(bob, first)
    for repo in (pair.server, bob):
        (ours,), (theirs,) = repo.storage.receipts(), pair.ada.storage.receipts()
        assert (ours.author, ours.reason, ours.time_ns) == (
            theirs.author, theirs.reason, theirs.time_ns
        )  # fmt: skip
        repo.storage.gc(grace="0")
        assert repo.storage.receipts()[0].states[0].gone_ns is not None
        assert repo.storage.fsck(full=True).sound
    eve.commit(state(11))
    eve.branch("more")
    eve.push(refs=["more"])  # from a clone that has it still
    assert not can_read(pair.server, first)
    dan = pair.clone("dan")
    assert not can_read(dan, first)
    assert dan.storage.receipts()[0].reason == "asked for"


def test_a_tombstone_for_the_present_version_waits(pair: Team) -> None:
    bob = pair.clone("bob")
    pair.ada.commit(state(20))
    pair.ada.storage.forget(pair.ids[3], reason="asked for")
    pair.ada.push()
    assert not can_read(pair.server, pair.ids[3]), "a bare repository has no working files"
    bob.fetch()
    assert can_read(bob, "HEAD")
    (receipt,) = bob.storage.receipts()
    assert (bob.head().commit, receipt.states[0].gone_ns) == (pair.ids[3], None)
    bob.remotes.add("other", str(Repository.init(pair.root / "other", bare=True).handle.store.root))
    bob.push("other")
    assert not can_read(pair.clone("other-clone", of="other"), pair.ids[3]), "nobody gets it"
    bob.storage.gc(grace="0")
    assert can_read(bob, "HEAD")
    bob.pull()
    bob.storage.gc(grace="0")
    assert not can_read(bob, pair.ids[3])
    (receipt,) = bob.storage.receipts()
    assert (receipt.reason, receipt.author) == ("asked for", pair.ada.handle.config.author)
    assert receipt.states[0].gone_ns is not None
    assert bob.storage.fsck(full=True).sound


def test_what_is_forgotten_elsewhere_is_kept_where_that_is_not_believed(pair: Team) -> None:
    bob = pair.clone("bob")
    bob.remotes.add("origin", pair.url, force=True, tombstones=False)
    first, second = pair.ids[:2]
    pair.ada.storage.forget(first, reason="asked for")
    pair.ada.push()
    done = bob.fetch()
    assert (done.kept, done.forgotten, done.held) == ((first,), (), ())
    assert can_read(bob, first) and bob.storage.receipts() == []
    pair.ada.storage.forget(second, reason="asked for")
    pair.ada.push()
    bob.storage.gc(grace="0")
    for _ in range(2):  # until it is decided
        assert set(bob.fetch().kept) == {first, second}
        assert can_read(bob, first) and can_read(bob, second)
    bob.storage.forget(second)
    assert bob.fetch().kept == (first,)
    bob.branch("more", first)
    bob.push(refs=["more"])  # never back to where it was forgotten
    assert not can_read(pair.server, first) and can_read(bob, first)
    bob.remotes.add("origin", pair.url, force=True)
    assert bob.fetch().forgotten == (first,), "also what was passed over before"
    assert not can_read(bob, first)
    assert bob.fetch().forgotten == ()
    assert bob.storage.fsck(full=True).sound


def test_a_remote_deploys_nothing_here_where_that_is_not_believed(pair: Team) -> None:
    bob = pair.clone("bob")
    bob.deploy("HEAD", "prod")
    bob.remotes.add("origin", pair.url, force=True, deployments=False)
    pair.ada.fetch()
    pair.ada.deploy(pair.ids[0], "prod")
    pair.ada.deploy(pair.ids[0], "lab")
    pair.ada.push()
    assert bob.fetch().operations
    assert bob.live("prod").commit == pair.ids[3]
    with pytest.raises(UnknownTarget):
        bob.live("lab")
    bob.remotes.add("origin", pair.url, force=True)
    bob.fetch()
    assert bob.live("prod").commit == bob.live("lab").commit == pair.ids[0]


def test_a_remote_that_is_not_believed_forgets_nothing_on_the_way(
    pair: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever answer a hostile one says it; by default it is believed."""
    honest = FolderTransport.send
    stone = Tombstone(subject=pair.ids[0], node=bytes(16), root=Root(bytes(32)))
    tomb = sent_with([stone])

    def forged(transport: FolderTransport, wanted: Wanted) -> Iterator[Slice]:
        yield Slice(encode_entries([tomb]), 0, ())
        yield from honest(transport, wanted)

    for name, believed in (("bob", False), ("eve", True)):
        clone = pair.clone(name, states="last:1")
        clone.remotes.add("origin", pair.url, force=True, tombstones=believed)
        clone.fetch("origin", pair.ids[:1])
        with monkeypatch.context() as patched:
            patched.setattr(FolderTransport, "send", forged)
            clone.fetch("origin", pair.ids[1:2])
        assert can_read(clone, pair.ids[0]) is not believed
