"""A hostile other side: what it sends is refused by name, and nothing of it can be seen afterwards.

The slices are honest ones that were changed by hand, with every checksum right, so that only what
the receiver proves by itself stands against them. They reach ``receive`` as they do behind each
transport: by a push at the server, by a fetch at the client.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import mvc
from mvc.api.repository import Repository
from mvc.errors import (
    HistoryMissing,
    InvalidName,
    MvcError,
    RemoteRefused,
    StorageFull,
    UnsupportedFormat,
)
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.model.statement import Deployment, Retraction, Tombstone
from mvc.remote.receiving.receiver import receive
from mvc.remote.slices import Absent, Lack, Sent, SentShape, encode_entries, sent_with
from mvc.remote.transport import Move, Place, Received, RemoteHead, Slice, Wanted
from mvc.remote.transports.folder import FolderTransport
from mvc.store.journal.entries import RefValue
from mvc.testing import FixedClock, fresh_process, open_quietly
from tests.counters import count
from tests.remote.kit.forged import Forged, Record, add_version, full, taken_apart
from tests.remote.kit.mixed import START, model, moved
from tests.remote.kit.same import answers, assert_clean, assert_same, known, refs_of, states
from tests.seeds import draw

DAY = 24 * 3600 * 10**9
MIB = 1 << 20
Attack = Callable[[Forged, "World"], None]
ATTACKS: dict[str, Attack] = {}


def attack(act: Attack) -> Attack:
    ATTACKS[act.__name__] = act
    return act


class World:
    """A sender with four versions; a bare receiver with the first two of them."""

    def __init__(self, folder: Path) -> None:
        clock = FixedClock(START, 1_000_000)
        Repository.init(folder / "a", clock=clock).close()
        Repository.init(folder / "b", clock=clock, bare=True).close()
        fresh_process()
        self.source = open_quietly(folder / "a", clock=clock)
        self.receiver = open_quietly(folder / "b", clock=clock)
        self.sends = FolderTransport("a", self.source.handle.store, self.source.handle.config)
        self.takes = FolderTransport("b", self.receiver.handle.store, self.receiver.handle.config)
        self.ids: list[CommitId] = []
        self.grow(2)
        for given in self.sends.send(Wanted()):
            moves = (Move("heads/main", None, self.ids[-1]),)
            self.takes.receive(self.with_moves(given, moves))
        self.after = self.sends.head().place
        self.grow(2)
        self.before = self.seen()

    @staticmethod
    def with_moves(given: Slice, moves: tuple[Move, ...]) -> Slice:
        return replace(given, moves=moves)

    def grow(self, more: int) -> None:
        for i in range(len(self.ids), len(self.ids) + more):
            self.ids.append(self.source.commit(moved(model(), i), deploy="prod").id)

    @property
    def base(self) -> CommitId:
        """The newest version of the receiver."""
        return self.ids[1]

    def version(self, at: int) -> Commit:
        return self.source.version(self.ids[at])

    def honest(self) -> Forged:
        (given,) = self.sends.send(Wanted(after=self.after))
        forged = taken_apart(given)
        forged.moves = (Move("heads/main", self.base, self.ids[-1]),)
        return forged

    def seen(self) -> object:
        """All that can be seen of the receiver."""
        fresh_process()
        repo, ids = self.receiver, known(self.receiver)
        entries = [r.entry.operation for r in repo.handle.store.fresh().entries()]
        refs = dict(repo.handle.store.snapshot.refs_under(""))
        return refs_of(repo), states(repo, ids), answers(repo), entries, sorted(refs)

    def close(self) -> None:
        self.source.close()
        self.receiver.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def member_of(forged: Forged, kind: int = 1) -> tuple[Record, int]:
    """The first record that has a member of that kind in a payload of its own, and where."""
    for i, j in forged.each():
        record = forged.records[i][j]
        for at, member in enumerate(record.members):
            if member.kind == kind and not record.group:
                return record, at
    raise AssertionError("no such record")


# -- codings -------------------------------------------------------------------------------


@attack
def other_bytes(forged: Forged, world: World) -> None:
    """A full coding of other bytes, under the name of an object that is new."""
    record, at = member_of(forged)
    member = record.members[at]
    forged.records[0].append(full(member.id, bytes(member.nbytes)))


@attack
def false_beside_true(forged: Forged, world: World) -> None:
    """A false coding of what the receiver has, in one record with something new."""
    record, at = member_of(forged)
    there = world.source.manifest(world.ids[0]).entries[0].contents[0]
    false = full(there.id, bytes(there.spec.nbytes))
    record.members.insert(at, false.members[0])
    record.payloads.insert(at, false.payloads[0])


@attack
def false_beside_true_in_a_new_version(forged: Forged, world: World) -> None:
    """As above, of an object that the new versions have as well."""
    record, at = member_of(forged)
    entry = world.source.manifest(world.ids[3]).entries[0]
    (frozen,) = [t for t in entry.tensors if t.key == "frozen"]
    content = entry.contents[frozen.content]
    false = full(content.id, bytes(content.spec.nbytes))
    record.members.insert(at, false.members[0])
    record.payloads.insert(at, false.payloads[0])


@attack
def false_second_coding(forged: Forged, world: World) -> None:
    """One object is there twice in the slice, and once it is another one."""
    record, at = member_of(forged)
    member = record.members[at]
    forged.records[-1].append(full(member.id, bytes(member.nbytes)))


@attack
def foreign_base(forged: Forged, world: World) -> None:
    for i, j in forged.each():
        record = forged.records[i][j]
        record.members = [m._replace(base=b"\x5a" * 8) if m.base else m for m in record.members]


@attack
def circle_of_bases(forged: Forged, world: World) -> None:
    record, at = member_of(forged)
    member = record.members[at]
    record.members[at] = member._replace(base=member.id[:8])


@attack
def bomb(forged: Forged, world: World) -> None:
    record, at = member_of(forged)
    record.members[at] = record.members[at]._replace(nbytes=1 << 40)


@attack
def bomb_of_a_piece(forged: Forged, world: World) -> None:
    """Its size is one that a tensor may have; what comes says nothing of it."""
    record, at = member_of(forged)
    record.members[at] = record.members[at]._replace(nbytes=1 << 25)


@attack
def bomb_of_a_manifest(forged: Forged, world: World) -> None:
    record, at = member_of(forged, kind=2)
    record.members[at] = record.members[at]._replace(nbytes=1 << 60)


@attack
def piece_from_nowhere(forged: Forged, world: World) -> None:
    record, at = member_of(forged)
    record.members[at] = record.members[at]._replace(start=1 << 50)


@attack
def unknown_coding(forged: Forged, world: World) -> None:
    record, at = member_of(forged)
    coding = type(record.members[at].coding)("pickle | run:me")
    record.members[at] = record.members[at]._replace(coding=coding)


@attack
def joint_of_many(forged: Forged, world: World) -> None:
    record, at = member_of(forged)
    coding = type(record.members[at].coding)("joint:9999 | expq | promote:2 | huffman")
    record.members[at] = record.members[at]._replace(coding=coding)


@attack
def swapped_names(forged: Forged, world: World) -> None:
    for i, j in forged.each():
        record = forged.records[i][j]
        sizes: dict[int, int] = {}
        for at, member in enumerate(record.members):
            if member.kind == 1 and member.nbytes in sizes and not record.group:
                other = sizes[member.nbytes]
                first, second = record.members[other].id, member.id
                record.members[at] = member._replace(id=first)
                record.members[other] = record.members[other]._replace(id=second)
                return
            sizes[member.nbytes] = at
    other_bytes(forged, world)


# -- versions ------------------------------------------------------------------------------


def _another(world: World, forged: Forged, path: str) -> Commit:
    entry = world.source.manifest(world.ids[0]).entries[0]
    manifest = Manifest([replace(entry, path=path)])
    return add_version(forged, manifest, world.version(0), world.base)


PATHS = ("../evil", "/etc/evil", "a/../../evil", "a\0b", "a\nb", "", "a//b", "x" * 2000)
SPECIAL = (".mvc/config.yaml", ".git/hooks/post-checkout", "a/.MVC/config.yaml")
"""May be kept, and are never written to."""


@attack
def traversal(forged: Forged, world: World) -> None:
    for path in PATHS:
        _another(world, forged, path)


@attack
def another_root(forged: Forged, world: World) -> None:
    commit = replace(world.version(2), root=world.version(0).root)
    forged.entries[0] = replace(forged.entries[0], commits=(commit.encoded,))


@attack
def another_manifest(forged: Forged, world: World) -> None:
    """The bytes of one version under the name of another one's manifest."""
    record, at = member_of(forged, kind=2)
    there = world.source.manifest(world.ids[0]).encoded
    other = full(record.members[at].id, there, 2)
    record.members[at], record.payloads[at] = other.members[0], other.payloads[0]


@attack
def without_its_objects(forged: Forged, world: World) -> None:
    """A version of which a tensor was never sent."""
    entry = world.source.manifest(world.ids[0]).entries[0]
    contents = tuple(replace(c, id=type(c.id)(b"\x11" * 32)) for c in entry.contents[:1])
    tensors = tuple(
        replace(t, id=type(t.id)(b"\x11" * 32)) if t.content == 0 else t for t in entry.tensors
    )
    manifest = Manifest([replace(entry, contents=contents + entry.contents[1:], tensors=tensors)])
    add_version(forged, manifest, world.version(0), world.base)


@attack
def cut_commit(forged: Forged, world: World) -> None:
    data = world.version(2).encoded
    forged.entries[0] = replace(forged.entries[0], commits=(data[:-3],))


@attack
def longer_commit(forged: Forged, world: World) -> None:
    forged.entries[0] = replace(forged.entries[0], commits=(world.version(2).encoded + b"\0",))


@attack
def from_tomorrow(forged: Forged, world: World) -> None:
    entry = world.source.manifest(world.ids[0]).entries[0]
    like = replace(world.version(0), time_ns=START + 3 * DAY)
    add_version(forged, Manifest([entry]), like, world.base)


@attack
def unknown_parent(forged: Forged, world: World) -> None:
    entry = world.source.manifest(world.ids[0]).entries[0]
    add_version(forged, Manifest([entry]), world.version(0), CommitId(b"\x07" * 32))


@attack
def given_up_without_a_recipe(forged: Forged, world: World) -> None:
    lack = Absent(bytes(world.ids[2]), "dropped", "model.safetensors")
    forged.entries[0] = replace(forged.entries[0], absent=(lack,))
    forged.records[0] = [r for r in forged.records[0] if any(m.kind == 2 for m in r.members)]


# -- sizes and form --------------------------------------------------------------------------


@attack
def negative_size(forged: Forged, world: World) -> None:
    sizes = [sum(len(r.encoded) for r in records) for records in forged.records]
    forged.sizes = [sizes[0] + 99, sizes[1] - 99]
    forged.sizes = [-1, sum(sizes) + 1]


@attack
def sizes_of_others(forged: Forged, world: World) -> None:
    sizes = [sum(len(r.encoded) for r in records) for records in forged.records]
    forged.sizes = [sizes[0] + 10, sizes[1] - 10]


@attack
def more_than_it_says(forged: Forged, world: World) -> None:
    forged.trailing, forged.size = b"\0" * 100, forged.slice().size


@attack
def less_than_it_says(forged: Forged, world: World) -> None:
    forged.size, forged.cut = forged.slice().size, 40


@attack
def huge_list(forged: Forged, world: World) -> None:
    forged.head = b"\xdd\xff\xff\xff\xff"


@attack
def deep_list(forged: Forged, world: World) -> None:
    forged.head = b"\x91" * 100_000


@attack
def no_list(forged: Forged, world: World) -> None:
    forged.head = msgspec.msgpack.encode({"entries": 7})


@attack
def huge_shape(forged: Forged, world: World) -> None:
    shape = SentShape(member_of(forged)[0].members[0].id, "F32", (1 << 40, 1 << 40))
    forged.entries[0] = replace(forged.entries[0], shapes=(shape,))
    forged.records[0].append(full(b"\x42" * 32, bytes(64)))


@attack
def unknown_dtype(forged: Forged, world: World) -> None:
    record = full(b"\x42" * 32, bytes(64))
    forged.entries[0] = replace(forged.entries[0], shapes=(SentShape(b"\x42" * 32, "O8", (8,)),))
    forged.records[0].append(record)


@attack
def object_of_no_version(forged: Forged, world: World) -> None:
    forged.records[0].append(full(b"\x42" * 32, bytes(64)))


@attack
def later_features(forged: Forged, world: World) -> None:
    forged.features = forged.features | {"holograms"}


# -- refs ------------------------------------------------------------------------------------

REFS = ("HEAD", "heads/../x", "heads/", "heads/a b", "heads/\x1b[31m", "remotes/o/main", "x",
        "heads/" + "a" * 1000, "tags/.lock", "heads/a..b", "refs/x", "", "heads/-x")  # fmt: skip


def _moving(name: str) -> Attack:
    def act(forged: Forged, world: World) -> None:
        forged.moves = (*forged.moves, Move(name, None, world.ids[-1]))

    return act


for number, name in enumerate(REFS):
    ATTACKS[f"ref_{number}"] = _moving(name)


@attack
def ref_to_nothing(forged: Forged, world: World) -> None:
    forged.moves = (Move("heads/new", None, CommitId(b"\x07" * 32)),)


@attack
def another_old_value(forged: Forged, world: World) -> None:
    forged.moves = (Move("heads/main", world.ids[0], world.ids[-1], force=True),)


@attack
def one_ref_of_two(forged: Forged, world: World) -> None:
    """All refs move, or none."""
    forged.moves = (Move("heads/new", None, world.ids[-1]), Move("heads/main", None, world.ids[0]))


# -- statements ------------------------------------------------------------------------------


STAMP: dict[str, object] = {"node": b"n" * 16, "recorded_ns": START, "hybrid_ns": START}


def _bringing(data: bytes) -> Attack:
    def act(forged: Forged, world: World) -> None:
        forged.entries[0] = replace(forged.entries[0], statements=(data,))

    return act


KNOWN = Deployment(subject=b"\x07" * 32, target="prod", time_ns=START, **STAMP).encoded


def _deploying(target: str = "prod", **other: object) -> Attack:
    def act(forged: Forged, world: World) -> None:
        values = {"subject": world.ids[0], "time_ns": START, **STAMP, **other}
        _bringing(Deployment(target=target, **values).encoded)(forged, world)

    return act


def _long_reason(forged: Forged, world: World) -> None:
    longest = "x" * (1 << 16)
    values = {"subject": world.ids[0], "time_ns": START, **STAMP, "reason": longest}
    one_more = b"\x81\x80\x04x" + longest.encode()
    data = Deployment(target="prod", **values).encoded
    _bringing(data.replace(b"\x80\x80\x04" + longest.encode(), one_more))(forged, world)


ATTACKS |= {
    "target_above": _deploying("../prod"),
    "target_of_control": _deploying("prod\x1b[2J"),
    "target_too_long": _deploying("p" * 5000),
    "target_empty": _deploying(""),
    "deployed_next_week": _deploying(hybrid_ns=START + 7 * DAY, recorded_ns=START + 7 * DAY),
    "clock_lifted": _deploying(hybrid_ns=(1 << 63) - 1),
    "recorded_next_week": _deploying(recorded_ns=START + 7 * DAY),
    "short_node": _deploying(node=b"n"),
    "long_reason": _long_reason,
    "statements_of_nothing": _bringing(b"\xff" * 50),
    "an_empty_statement": _bringing(b""),
    "an_unknown_kind": _bringing(b"\x06" + KNOWN[1:]),
    "a_statement_cut": _bringing(KNOWN[:-1]),
    "a_statement_that_goes_on": _bringing(KNOWN + b"\0"),
}  # fmt: skip


# -- what happens ------------------------------------------------------------------------------


def given_to(world: World, forged: Forged) -> tuple[Received | None, MvcError | None]:
    try:
        return world.takes.receive(forged.slice()), None
    except MvcError as error:
        return None, error


def is_refused(world: World, forged: Forged) -> bool:
    """By name, with nothing left that can be seen; False if it was taken."""
    received, error = given_to(world, forged)
    if received is not None and not received.missing:
        return False
    if error is not None:
        assert error.message and "\n" not in error.message and "\x1b" not in error.message
        assert "Traceback" not in error.message
    return True


def test_attacks_are_refused_and_leave_nothing(world: World) -> None:
    """The honest slice then works as ever."""
    for name, act in ATTACKS.items():
        forged = world.honest()
        act(forged, world)
        assert is_refused(world, forged), name
        assert world.seen() == world.before, name
    assert_clean(world.receiver)
    received, error = given_to(world, world.honest())
    assert error is None and received is not None and not received.missing
    assert_same(world.source, world.receiver)


def test_a_false_piece_of_a_large_object_is_refused(world: World) -> None:
    """In place of the true one, before it, behind it, and where no true one comes."""
    large = np.arange((PIECE + MIB) // 4, dtype=np.int32)
    first = world.source.commit({"frozen": large, "moves": large}, path="large").id
    for given in world.sends.send(Wanted(after=world.after)):
        world.takes.receive(world.with_moves(given, (Move("heads/main", world.base, first),)))
    world.after = world.sends.head().place
    second = world.source.commit({"frozen": large, "moves": large + 1}, path="large").id
    world.ids[1:] = [first, second]
    world.before = world.seen()
    contents = world.source.manifest(second).by_path["large"].contents
    for content, start, at in itertools.product(contents, (0, PIECE), ("before", "behind", "for")):
        false = full(content.id, bytes(min(PIECE, content.spec.nbytes - start)))
        false.members = [false.members[0]._replace(start=start)]
        forged = world.honest()
        (records,) = forged.records
        places = [(r, k) for r in records for k in range(len(r.members))]
        true = [p for p in places if p[0].members[p[1]][1:3] == (content.id, start)]
        record, k = (true or [(records[0], 0)])[0]
        if at == "for" and true:
            del record.members[k], record.payloads[k]
        k += at == "behind"
        record.members.insert(k, false.members[0])
        record.payloads.insert(k, false.payloads[0])
        assert is_refused(world, forged), (start, at)
        assert world.seen() == world.before
    assert given_to(world, world.honest())[1] is None
    assert_same(world.source, world.receiver)


@pytest.mark.parametrize(
    "name", [name for name in ATTACKS if name.startswith(("bomb", "huge", "deep"))]
)
def test_memory_of_an_attacked_process_is_bounded(name: str, world: World) -> None:
    forged = world.honest()
    ATTACKS[name](forged, world)
    tracemalloc.start()
    try:
        given_to(world, forged)
        assert tracemalloc.get_traced_memory()[1] < 100 * MIB
    finally:
        tracemalloc.stop()


def test_each_path_is_refused(world: World) -> None:
    for path in PATHS:
        forged = world.honest()
        _another(world, forged, path)
        assert is_refused(world, forged), path


@pytest.mark.parametrize("path", SPECIAL)
def test_a_clone_writes_to_no_folder_of_version_control(
    path: str, world: World, tmp_path: Path
) -> None:
    forged = world.honest()
    made = _another(world, forged, path)
    forged.moves = (Move("heads/main", world.base, made.id),)
    given_to(world, forged)
    place = tmp_path / "clone"
    with suppress(MvcError):
        mvc.clone(str(world.receiver.root), place).close()
    content = world.source.checkout(world.ids[0])["w"].tobytes()
    written = [p for p in place.rglob("*") if p.is_file() and content in p.read_bytes()]
    assert all(p.relative_to(place).parts[:2] == (".mvc", "packs") for p in written)


def test_a_state_that_was_forgotten_by_name_does_not_come_back(world: World) -> None:
    """Neither with its version, nor with another one that has its objects for a base."""
    honest = world.honest()
    sent = Slice(*_only([_tombstone(world, 2)]))
    world.takes.receive(sent)
    received, error = given_to(world, honest)
    fresh_process()
    if error is None and received is not None and not received.missing:
        assert states(world.receiver, [world.ids[2]])[world.ids[2]] == "state-forgotten"
    contents = {c.id for c in world.source.manifest(world.ids[2]).entries[0].contents}
    others = {
        c.id for i in (0, 1, 3) for c in world.source.manifest(world.ids[i]).entries[0].contents
    }
    world.receiver.storage.gc(grace="0")
    from mvc.maintenance.graph import read_records

    held = {
        each.member.id for each in read_records(world.receiver.handle.store.fresh()).all_codings()
    }
    assert not held & (contents - others)
    assert_clean(world.receiver)


@pytest.mark.parametrize("why", ["rule", "name", "dropped"])
def test_a_state_that_was_to_come_and_does_not_stays_forgotten(why: Lack, world: World) -> None:
    world.receiver.storage.forget(keep_last=1)
    world.receiver.storage.gc(grace="0")
    before = world.seen()
    id_ = bytes(world.ids[0])
    lack = Absent(id_, why, "model.safetensors")
    assert is_refused(world, Forged([Sent(restored=(id_,), absent=(lack,))], [[]]))
    assert world.seen() == before
    assert_clean(world.receiver)


def test_who_may_not_forget_has_nothing_forgotten_later(world: World) -> None:
    """A state that HEAD stands on is forgotten once HEAD moves on, if its owner said so."""
    tip = world.ids[-1]
    tomb = _tombstone(world, -1)
    low = FolderTransport(
        "a", world.source.handle.store, world.source.handle.config, scopes=("push:heads/side",)
    )
    with pytest.raises(RemoteRefused, match="admin"):
        low.receive(Slice(*_only([tomb])))
    world.grow(1)
    low.receive(Slice(*_only([Sent()])))
    fresh_process()
    assert states(world.source, [tip])[tip] != "state-forgotten"


def test_what_a_newer_one_needs_is_shown_escaped_and_short(world: World) -> None:
    forged = world.honest()
    forged.features = frozenset({"x\x1b[31m" + "y" * 10_000})
    with pytest.raises(UnsupportedFormat) as caught:
        world.takes.receive(forged.slice())
    assert "\x1b" not in caught.value.message and len(caught.value.message) < 1000


def test_records_for_which_there_is_no_room_are_not_begun(world: World) -> None:
    """By a hostile server as by a hostile client; nothing is written before it is refused."""

    def never() -> Iterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    for local, whose in ((False, "the remote's disk"), (True, "the disk")):
        head = encode_entries([Sent(size=1 << 49)])
        with pytest.raises(StorageFull, match=f"^{whose} is nearly full: 563 TB do not fit"):
            receive(
                world.receiver.handle.store,
                world.receiver.handle.config,
                Slice(head, 1 << 49, never()),
                local=local,
            )
    assert world.seen() == world.before


def test_what_is_refused_is_taken_off_the_disk(world: World) -> None:
    def size() -> int:
        return sum(f.stat().st_size for f in (world.receiver.root / ".mvc/packs").iterdir())

    before, forged = size(), world.honest()
    forged.records[-1].append(full(b"\x42" * 32, random.Random(1).randbytes(1 << 20)))
    assert is_refused(world, forged)
    assert size() == before


@pytest.mark.parametrize(
    "name",
    ["../x", "-x", "HEAD", "a\x1b[31m", "", "x" * 5000, "main\n", CommitId(b"\x07" * 32)],
    ids=ascii,
)
def test_a_clone_stands_on_no_branch_that_cannot_be(
    name: RefValue, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FolderTransport.head

    def forged(transport: FolderTransport, after: Place | None = None) -> RemoteHead:
        head = honest(transport, after)
        return replace(head, refs={**head.refs, "HEAD": name})

    monkeypatch.setattr(FolderTransport, "head", forged)
    with pytest.raises((InvalidName, HistoryMissing)) as caught:
        mvc.clone(str(world.receiver.root), tmp_path / "clone")
    assert "\x1b" not in caught.value.message
    assert not (tmp_path / "clone" / ".mvc").exists()


@pytest.mark.parametrize("number", [1 << 62, 1 << 63, -1])
def test_a_place_that_was_never_reached_is_the_beginning(number: int, world: World) -> None:
    place = Place(number, bytes(16), number)
    (given,) = world.sends.send(Wanted(after=place))
    assert len(taken_apart(given).entries) == len(world.ids)


def _tombstone(world: World, number: int) -> Sent:
    id_ = world.ids[number]
    root = world.source.version(id_).root
    return sent_with([Tombstone(subject=id_, root=root, **STAMP)])


def _only(entries: list[Sent]) -> tuple[bytes, int, list[bytes]]:
    made = Forged(entries, [[] for _ in entries]).slice()
    return made.head, made.size, []


def test_a_retraction_of_nothing_known_takes_nothing_away(world: World) -> None:
    gone = Retraction(subject=b"\x01" * 32, target="prod", **STAMP)
    made = Forged([sent_with([gone])], [[]])
    given_to(world, made)
    assert answers(world.receiver) == world.before[2]  # type: ignore[index]
    assert_clean(world.receiver)


# -- anything at all ---------------------------------------------------------------------------


def _mutated(forged: Forged, rng: random.Random) -> Forged:
    """A byte, a field or a record is another one, is gone, or is there twice."""
    made = dataclasses.replace(
        forged, entries=list(forged.entries), records=[list(r) for r in forged.records]
    )
    i, j = rng.choice(list(forged.each()))
    record = made.records[i][j]
    act = rng.randrange(8)
    if act == 0:
        made.head = _flipped(forged.slice().head, rng)
    elif act == 1:
        at = rng.randrange(len(record.payloads))
        payloads = list(record.payloads)
        payloads[at] = _flipped(payloads[at], rng)
        made.records[i][j] = dataclasses.replace(record, payloads=payloads)
    elif act == 2:
        members = list(record.members)
        at = rng.randrange(len(members))
        change = rng.choice(("id", "base", "nbytes", "start", "kind"))
        value: object = rng.choice((0, 1, 2, 7, 1 << 20, 1 << 33))
        if change in ("id", "base"):
            size = 32 if change == "id" else rng.choice((0, 8))
            value = rng.choice((rng.randbytes(size), rng.choice(members).id[:size]))
        if change == "kind":
            value = rng.choice((1, 2))
        members[at] = members[at]._replace(**{change: value})
        made.records[i][j] = dataclasses.replace(record, members=members)
    elif act == 3:
        del made.records[i][j]
    elif act == 4:
        made.records[rng.randrange(len(made.records))].append(record)
    elif act == 5:
        at = rng.randrange(len(made.entries))
        commits = made.entries[at].commits
        if commits:
            made.entries[at] = replace(made.entries[at], commits=(_flipped(commits[0], rng),))
    elif act == 6:
        made.entries[0], made.entries[-1] = made.entries[-1], made.entries[0]
        made.records[0], made.records[-1] = made.records[-1], made.records[0]
    else:
        made.cut = rng.randrange(1, 4000)
        made.size = rng.choice((None, forged.slice().size))
    return made


def _flipped(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 3))):
        if made:
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _try(folder: Path, mutations: int) -> None:
    rng = draw("hostile")
    counted = {"tried": 0, "refused": 0, "taken": 0}
    world = World(folder / "0")
    honest = world.honest()
    for number in range(1, mutations + 1):
        forged = _mutated(honest, rng)
        if is_refused(world, forged):
            counted["refused"] += 1
        else:  # nothing that counts was another thing: what is known is what it was
            counted["taken"] += 1
            assert_clean(world.receiver)
            there = states(world.source, world.ids)
            for id_, found in states(world.receiver, known(world.receiver)).items():
                assert id_ not in there or found in (there[id_], "state-forgotten"), id_
            world.close()
            world = World(folder / str(number))
            honest = world.honest()
        counted["tried"] += 1
    assert_clean(world.receiver)
    world.close()
    count("hostile slices", **counted, wrong=0)
    assert counted["refused"] > mutations // 3


def test_slices_with_a_mutation_bring_nothing_wrong(tmp_path: Path) -> None:
    _try(tmp_path, 60)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(8))
def test_5000_mutated_slices_bring_nothing_wrong(tmp_path: Path, round_: int) -> None:
    _try(tmp_path, 625)
