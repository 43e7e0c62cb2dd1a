from __future__ import annotations

from pathlib import Path

import numpy as np

from mvc.api import Operation
from mvc.cli.commands.every_day.undo import moves
from mvc.cli.commands.storage.gc import command
from mvc.store.journal.entries import Entry, RefChange


def grown(mvc, count: int = 6) -> list[str]:
    """Versions whose every element changes."""
    ids = []
    for n in range(count):
        weights = np.random.default_rng(n).standard_normal((80, 60)).astype(np.float32)
        ids.append(mvc.commit(n, big=weights))
    return ids


def packs() -> int:
    return sum(p.stat().st_size for p in Path(".mvc/packs").iterdir())


def test_nothing_to_collect(mvc) -> None:
    grown(mvc, 2)
    assert mvc("gc").out == "Nothing to collect\n"
    assert mvc("gc", "-n").out == "Nothing to collect\n"
    assert mvc("gc", "-q").out == ""


def test_it_says_what_goes_and_how_much_space_comes_back(mvc) -> None:
    ids = grown(mvc)
    mvc("checkout", ids[1])
    mvc("switch", "-c", "side")
    mvc("branch", "-d", "main", "-f")
    assert mvc("gc").out == "Nothing to collect\n"
    before = packs()
    said = mvc("gc", "-n", "--grace", 0).out.splitlines()
    assert said[0].startswith("Would delete unreachable: 4 versions, ")
    assert said[-1].startswith("Would free about ")
    assert packs() == before
    said = mvc("gc", "--grace", "0").out.splitlines()
    assert said[0].startswith("Deleted unreachable: 4 versions, ")
    assert said[-1].startswith("Freed ")
    assert packs() < before / 2
    mvc("checkout", ids[0])
    mvc("show", ids[3], code=3)
    assert mvc("fsck", "--full", "--json").json["sound"]
    assert mvc("gc", "--grace", 0).out == "Nothing to collect\n"


def test_json(mvc) -> None:
    ids = grown(mvc, 3)
    mvc("undo")
    plan = mvc("gc", "-n", "--grace", "0", "--json").json
    assert plan["schema"] == "mvc.gc/1"
    assert (plan["dry_run"], plan["commits"], plan["grace_seconds"]) == (True, [ids[2]], 0)
    done = mvc("gc", "--grace", "0", "--json").json
    assert (done["dry_run"], done["commits"]) == (False, [ids[2]])
    assert done["objects"] == plan["objects"] > 0
    assert done["before_bytes"] > done["freed_bytes"] > 0
    assert mvc("gc", "--json").json["grace_seconds"] == 14 * 86_400
    mvc("config", "gc.grace_days", "2.5")
    assert mvc("gc", "--json").json["grace_seconds"] == 2.5 * 86_400


def test_steps_that_stay_are_told(mvc) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((200, 300)).astype(np.float32)
    bits = weights.view(np.uint32)
    for bit in (9, 17, None):
        mvc.commit(0.0, big=bits.view(np.float32).copy())
        if bit is not None:
            bits = bits ^ np.where(rng.random(bits.shape) < 0.02, 1 << bit, 0).astype(np.uint32)
    mvc("deploy", "HEAD~2", "prod")
    mvc("forget", "--unused", "prod", "-f")
    assert "as a base of other contents" in mvc("gc").out
    assert mvc("gc", "--json").json["phantoms"] > 0


def test_damage_is_refused(mvc) -> None:
    mvc.commit(1)
    (pack,) = Path(".mvc/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[30] ^= 1
    pack.write_bytes(bytes(data))
    said = mvc("gc", code=4).err.splitlines()
    assert said[0].startswith("mvc: the repository is damaged: ")
    assert said[1] == "hint: run 'mvc fsck --repair' first"
    assert mvc("gc", "--json", code=4).json["kind"] == "damaged-data"


def test_help() -> None:
    assert command.params[0].opts == ["-n", "--dry-run"]


def test_what_repairs_have_put_aside_stays_and_is_told(mvc) -> None:
    grown(mvc, 2)
    place = Path(".mvc/quarantine")
    place.mkdir()
    (place / "00000001-8.pack").write_bytes(b"mvcpack1" + bytes(1000))
    done = mvc("gc")
    assert done.out == "Nothing to collect\n" and ".mvc/quarantine" in done.err
    assert mvc("gc", "--json").json["quarantined_bytes"] == 1008
    assert (place / "00000001-8.pack").exists()


def test_quarantine_of_a_forgotten_state_goes_and_is_told(mvc) -> None:
    ids = grown(mvc, 3)
    place = Path(".mvc/quarantine")
    place.mkdir()
    (place / "00000001-8.pack").write_bytes(b"mvcpack1" + bytes(1000))
    mvc("forget", ids[1], "-f")
    what = " 1.01 kB of .mvc/quarantine, which may contain bytes of forgotten states"
    assert f"Would delete{what}" in mvc("gc", "-n").out.splitlines()
    done = mvc("gc", "--json").json
    assert (done["quarantined_bytes"], done["quarantine_deleted_bytes"]) == (0, 1008)
    assert not list(place.iterdir())
    (place / "00000001-8.pack").write_bytes(b"mvcpack1" + bytes(1000))
    mvc("forget", ids[0], "-f")
    assert f"Deleted{what}" in mvc("gc").out.splitlines()


def test_operations_that_were_shortened_are_told(mvc) -> None:
    first = mvc.commit(1)[:10]
    mvc("branch", "-m", "main", "trunk")
    for _ in range(40):
        mvc("tag", "x")
        mvc("tag", "-d", "x")
    second = mvc.commit(2)[:10]
    mvc("undo")
    mvc("gc", "--grace", "0")
    rows = {line.split()[0]: line for line in mvc("undo", "--list").out.splitlines()[1:]}
    found = {o["number"]: o for o in mvc("undo", "--list", "--json").json["operations"]}
    assert second not in "".join(rows.values())
    for number, row in rows.items():
        shortened = found[int(number)]["shortened"]
        assert ("cannot be undone" in row) == shortened
        assert "none -> none" not in row
        assert not shortened or " -> " not in row
    assert any("cannot be undone" in row and f"trunk {first}" in row for row in rows.values())


def moved(*change: str | None) -> str:
    return moves(Operation(1, Entry("undo", 0, refs=(RefChange(*change),))))


def test_a_move_without_the_value_from_before() -> None:
    assert moved("heads/exp", None, None) == "exp deleted"
    assert moved("HEAD", "main", "main") == "HEAD main"
    assert moved("tags/v1", None, None) == "tag v1 deleted"
    assert moved("HEAD", "main", None) == "HEAD main -> none"
