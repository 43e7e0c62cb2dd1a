from __future__ import annotations

from mvc.pipelines.table import PRESETS, STAGES


def test_lists_all_stages_and_presets(mvc) -> None:
    lines = mvc("pipeline").out.splitlines()
    for kind in STAGES.values():
        assert any(line.startswith(f"{kind.usage} ") and kind.about in line for line in lines)
    for name, text in PRESETS.items():
        assert any(line.split() == [name, *text.split()] for line in lines)
    found = mvc("pipeline", "--json").json
    assert found["schema"] == "mvc.pipeline/1"
    assert found["presets"] == PRESETS
    assert [stage["usage"] for stage in found["stages"]] == [s.usage for s in STAGES.values()]
    assert set(found["stages"][0]) == {"usage", "about", "lossy", "decides"}


def test_set(mvc, tmp_path, monkeypatch) -> None:
    mvc("pipeline", "--lossy", "--max-recovery", "2.5", "--set")
    assert mvc("config", "commit.pipeline").out == "frontier-0\n"
    assert mvc("config", "store.max_recovery").out == "2.5\n"
    mvc("pipeline", "sub|zigzag|planes|zstd:huff", "--set")
    assert mvc("config", "commit.pipeline").out == "sub | zigzag | planes | zstd:huff\n"
    assert mvc("config", "store.max_recovery").out == "2.5\n"
    mvc("pipeline", "xor | lsb:20 | planes:all | zstd:1", "--set", "--json")
    assert mvc("config", "commit.pipeline").out == "vsol-0-fast\n"
    monkeypatch.chdir(tmp_path)
    assert mvc("pipeline", "vsol").out
    assert "not a repository" in mvc("pipeline", "vsol", "--set", code=3).err
