from __future__ import annotations

import shutil

import numpy as np


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


def smash(path, at: int, length: int = 12) -> None:
    data = bytearray(path.read_bytes())
    for i in range(at, at + length):
        data[i] ^= 0x5A
    path.write_bytes(data)


def test_repair_from_the_working_folder(mvc) -> None:
    mvc.commit(1, big=np.random.default_rng(0).standard_normal(50_000).astype(np.float32))
    (pack,) = (mvc.folder / ".mvc/packs").glob("*.pack")
    smash(pack, pack.stat().st_size // 2)
    mvc("fsck", code=4)
    said = mvc("fsck", "--repair").out
    assert "healed object" in said and "from the file model.safetensors" in said
    assert "kept apart quarantine/00000001-" in said
    assert "Sound: " in said
    assert mvc("fsck", "--repair", "--full").out.startswith("nothing to repair\nSound: ")


def test_repair_of_what_nothing_heals(mvc) -> None:
    id_ = mvc.commit(1, big=np.random.default_rng(0).standard_normal(50_000).astype(np.float32))
    (pack,) = (mvc.folder / ".mvc/packs").glob("*.pack")
    smash(pack, pack.stat().st_size // 2)
    (mvc.folder / "model.safetensors").unlink()
    found = mvc("fsck", "--repair", "--json", code=4).json
    assert (found["schema"], found["sound"], found["healed"]) == ("mvc.fsck/1", False, [])
    (kept,) = found["quarantined"]
    assert (mvc.folder / ".mvc/quarantine" / kept["file"]).stat().st_size == kept["bytes"] + 8
    (problem,) = found["problems"]
    assert (problem["kind"], problem["versions"]) == ("lost", [id_])
    assert problem["tensors"] == ["model.safetensors: big"]
    assert "quarantine" in mvc("fsck", code=4).err
    mvc.commit(2)
    assert mvc("fsck", "--repair", code=4).out.startswith("nothing to repair\nlost ")


def test_repair_from_another_repository(mvc) -> None:
    mvc.commit(1)
    shutil.copytree(mvc.folder / ".mvc", mvc.folder.parent / "backup")
    shutil.rmtree(mvc.folder / ".mvc/packs")
    (mvc.folder / ".mvc/packs").mkdir()
    (mvc.folder / "model.safetensors").unlink()
    mvc("fsck", code=4)
    said = mvc("fsck", "--repair", "--from", mvc.folder.parent / "backup").out
    assert "from the other repository" in said and "healed manifest" in said
    mvc("checkout", "HEAD", "-f")
    assert (mvc.folder / "model.safetensors").exists()
    assert "no repository" in mvc("fsck", "--repair", "--from", mvc.folder.parent, code=3).err
    assert "--repair" in mvc("fsck", "--from", "x", code=2).err


def test_repair_of_what_cannot_be_opened(mvc) -> None:
    mvc.commit(1)
    smash(mvc.folder / ".mvc/format", 4)
    smash(mvc.folder / ".mvc/journal", 30)
    mvc("log", code=4)
    said = mvc("fsck", "--repair").out
    assert "healed journal entry 0 from its other copy" in said
    assert "healed format format from " in said
    mvc("log")
