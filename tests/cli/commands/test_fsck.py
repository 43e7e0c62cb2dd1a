from __future__ import annotations

import shutil


def test_sound(mvc) -> None:
    mvc.commit(1)
    assert mvc("fsck").out.startswith("Sound: 1 version, ")
    found = mvc("fsck", "--full", "--json").json
    assert found["schema"] == "mvc.fsck/1"
    assert (found["sound"], found["full"], found["problems"]) == (True, True, [])


def test_damage_is_named_and_exits_with_four(mvc) -> None:
    id_ = mvc.commit(1)
    (pack,) = (mvc.folder / ".mvc/packs").glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    result = mvc("fsck", code=4)
    assert "problem" in result.out
    found = mvc("fsck", "--json", code=4).json
    assert found["sound"] is False
    assert any(id_ in p["versions"] or p["kind"] in {"record", "pack"} for p in found["problems"])


def test_index_is_made_anew(mvc) -> None:
    id_ = mvc.commit(1)
    result = mvc("fsck", "--rebuild-index")
    assert result.err.startswith("the index was made anew\n")
    assert mvc("rev-parse", "HEAD").out.strip() == id_


def test_a_journal_older_than_its_index_needs_consent(mvc) -> None:
    first = mvc.commit(1)
    old = (mvc.folder / ".mvc/journal").read_bytes()
    mvc.commit(2)
    mvc("fsck", "--rebuild-index")
    (mvc.folder / ".mvc/journal").write_bytes(old)
    assert "--rebuild-index" in mvc("log", code=4).err
    assert "given up" in mvc("fsck", "--rebuild-index").err
    assert mvc("rev-parse", "HEAD").out.strip() == first
    shutil.rmtree(mvc.folder / ".mvc/index.lmdb")
    assert mvc("rev-parse", "HEAD").out.strip() == first
