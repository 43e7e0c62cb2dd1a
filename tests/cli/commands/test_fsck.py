from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.program import Mvc


def test_damage_is_named_and_exits_with_four(mvc) -> None:
    id_ = mvc.commit(1)
    (pack,) = (mvc.folder / ".mvc/packs").glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    result = mvc("fsck", code=4)
    assert "problem" in result.out and "mvc fsck --repair" in result.err
    found = mvc("fsck", "--json", code=4).json
    assert found["sound"] is False
    assert any(id_ in p["versions"] or p["kind"] in {"record", "pack"} for p in found["problems"])


def test_a_journal_older_than_its_index_needs_consent(mvc) -> None:
    first = mvc.commit(1)
    old = (mvc.folder / ".mvc/journal").read_bytes()
    mvc.commit(2)
    mvc("fsck", "--rebuild-index")
    (mvc.folder / ".mvc/journal").write_bytes(old)
    assert "--rebuild-index" in mvc("log", code=4).err
    assert "discarded" in mvc("fsck", "--rebuild-index").err
    assert mvc("show", "--id", "HEAD").out.strip() == first
    shutil.rmtree(mvc.folder / ".mvc/index.lmdb")
    assert mvc("show", "--id", "HEAD").out.strip() == first


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
    assert "quarantined quarantine/00000001-" in said
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
    assert found["lost_versions"] == [id_]
    plain = mvc("fsck", code=4)
    assert "/.mvc/quarantine has 1 file of " in plain.err
    assert plain.out.endswith(f"\n1 of 1 version cannot be recovered: {id_[:10]}\n")
    mvc.commit(2)
    said = mvc("fsck", "--repair", code=4).out
    why = "nothing could be repaired (try --from with another backup)\nlost "
    assert said.startswith(why)
    assert f"1 of 2 versions cannot be recovered: {id_[:10]}" in said


def test_a_missing_pack_is_one_line_and_what_it_takes_is_counted(mvc) -> None:
    ids = [mvc.commit(i) for i in range(1, 4)]
    (pack,) = (mvc.folder / ".mvc/packs").glob("*.pack")
    size = pack.stat().st_size - 8
    pack.unlink()
    (mvc.folder / "model.safetensors").unlink()
    said = mvc("fsck", code=4).out
    first, *others = said.splitlines()
    assert first == f"pack 00000001.pack: the file is missing, with {size:,} bytes of records"
    assert not any("pack" in line for line in others)
    reach = " ".join(id_[:10] for id_ in ids)
    assert others[-1] == f"3 of 3 versions cannot be recovered: {reach}"
    said = mvc("fsck", "--repair", code=4).out
    why = "nothing could be repaired (try --from with another backup)\n"
    assert said.startswith(why)
    shutil.copytree(mvc.folder / ".mvc", mvc.folder.parent / "backup")
    said = mvc("fsck", "--repair", "--from", mvc.folder.parent / "backup", code=4).out
    assert said.startswith(why)


def test_damage_that_takes_no_version_away(mvc) -> None:
    mvc.commit(1)
    smash(mvc.folder / ".mvc/journal", 30)
    said = mvc("fsck", code=4).out.splitlines()
    assert said[0].startswith("journal (byte 0): one of the two copies of entry 0")
    assert said[-1] == "nothing is lost: 1 version in readable journal entries"


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
    assert "healed format from " in said
    mvc("log")


def test_a_clone_is_repaired_from_a_new_clone(mvc: Mvc, tmp_path: Path) -> None:
    mvc.commit(1, big=np.random.default_rng(0).standard_normal(50_000).astype(np.float32))
    mvc("init", "--bare", tmp_path / "server")
    mvc("remote", "add", "origin", tmp_path / "server")
    mvc("push")
    (pack,) = (mvc.folder / ".mvc/packs").glob("*.pack")
    smash(pack, pack.stat().st_size // 2)
    (mvc.folder / "model.safetensors").unlink()
    for words in ([], ["--repair"], ["--repair"]):
        said = mvc("fsck", *words, code=4).err
        assert "add --from DIR to repair from a backup or a new clone" in said
    mvc("clone", tmp_path / "server", tmp_path / "new")
    assert "healed object" in mvc("fsck", "--repair", "--from", tmp_path / "new").out
    assert mvc("fsck", "--full").code == 0


@pytest.mark.parametrize("verb", ["clone", "fetch"])
def test_damage_in_a_remote_is_not_to_be_repaired_here(mvc: Mvc, tmp_path: Path, verb: str) -> None:
    mvc.commit(1, big=np.random.default_rng(0).standard_normal(50_000).astype(np.float32))
    (pack,) = (mvc.folder / ".mvc/packs").glob("*.pack")
    smash(pack, pack.stat().st_size // 2)
    here = tmp_path / "here"
    if verb == "fetch":
        mvc("init", here)
        mvc("-C", here, "remote", "add", "origin", mvc.folder)
        said = mvc("-C", here, "fetch", code=4).err
    else:
        said = mvc("clone", mvc.folder, here, code=4).err
    assert "run 'mvc fsck' in the sending repository, which is damaged" in said
