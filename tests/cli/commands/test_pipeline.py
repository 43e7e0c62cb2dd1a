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


def test_explains_one(mvc) -> None:
    out = mvc("pipeline", "every:1/2|topk:.1 | xor|lsb:18|sparse | zstd:1").out
    assert out.startswith("every:1/2 | topk:0.1 | xor | lsb:18 | sparse | zstd:1\n")
    assert "Deltas as:  xor | sparse | zstd:1, to be walked either way\n" in out
    assert "In full as: planes:all | zstd:1\n" in out
    assert "Weights:    production weights differ from training weights\n" in out
    assert "Saves:      by every:1/2\n" in out
    out = mvc("pipeline", "vsol").out
    assert out.startswith("xor | planes:all | zstd:1  (vsol)\n")
    assert "Weights:    lossless\n" in out
    assert "Saves:" not in out
    assert "every version in full" in mvc("pipeline", "none").out


def test_explains_what_leads_forward_only(mvc) -> None:
    out = mvc("pipeline", "lc:x=2").out
    assert out.startswith("expq | promote:2 | packed\n")
    assert "Deltas as:  expq | promote:2 | packed, forward only\n" in out
    assert "In full as: planes | zstd:huff\n" in out
    assert "Weights:    what is stored differs from what was given\n" in out
    found = mvc("pipeline", "lc", "--json").json
    assert (found["preset"], found["lossy"], found["operator"]) == ("lc", True, "add")
    assert [s["lossy"] for s in found["stages"]] == [True, True, False]


def test_explains_as_json(mvc) -> None:
    found = mvc("pipeline", "vsol-1-slow", "--json").json
    assert (found["preset"], found["lossy"], found["set"]) == ("vsol-1-slow", True, False)
    assert found["coding"] == "xor | sparse | zstd:1"
    assert found["full"] == "planes:all | zstd:1"
    assert [s["text"] for s in found["stages"] if s["lossy"]] == [
        "topk:0.075,min=0.001,loss=-0.5",
        "lsb:20",
    ]
    assert [s["text"] for s in found["stages"] if s["decides"]] == ["dsed:0.01"]


def test_refuses_what_does_not_fit(mvc) -> None:
    assert "stage lsb:20 in 'sub | lsb:20' gets" in mvc("pipeline", "sub | lsb:20", code=3).err
    assert "N is a whole number from 1 to 23" in mvc("pipeline", "xor | lsb:99", code=3).err
    assert "stages: " in mvc("pipeline", "nothing", code=3).err


def test_chooses_by_requirement(mvc) -> None:
    found = mvc("pipeline", "--lossy", "--speed", "slow", "--accuracy-drop", "0.1", "--json").json
    assert found["preset"] == "vsol-0.1-slow"
    assert found["requirements"] == {
        "max_recovery": 10,
        "lossy": True,
        "speed": "slow",
        "accuracy_drop": 0.1,
    }
    assert mvc("pipeline", "--max-recovery", "3", "--json").json["preset"] == "lossless"
    assert mvc("config", "commit.pipeline").out == "lossless\n"
    assert "accuracy_drop is 0, 0.1 or 1" in mvc("pipeline", "--accuracy-drop", "3", code=2).err
    assert "max_recovery is" in mvc("pipeline", "--max-recovery", "0", code=2).err
    mvc("pipeline", "--speed", "medium", code=2)
    mvc("pipeline", "vsol", "--lossy", code=2)
    mvc("pipeline", "--set", code=2)


def test_set(mvc, tmp_path, monkeypatch) -> None:
    mvc("pipeline", "--lossy", "--max-recovery", "2.5", "--set")
    assert mvc("config", "commit.pipeline").out == "vsol-0-fast\n"
    assert mvc("config", "store.max_recovery").out == "2.5\n"
    mvc("pipeline", "sub|zigzag|planes|zstd:huff", "--set")
    assert mvc("config", "commit.pipeline").out == "sub | zigzag | planes | zstd:huff\n"
    assert mvc("config", "store.max_recovery").out == "2.5\n"
    mvc("pipeline", "xor | lsb:20 | planes:all | zstd:1", "--set", "--json")
    assert mvc("config", "commit.pipeline").out == "vsol-0-fast\n"
    monkeypatch.chdir(tmp_path)
    assert mvc("pipeline", "vsol").out
    assert "not a repository" in mvc("pipeline", "vsol", "--set", code=3).err


def test_set_says_what_it_means_for_commits(mvc) -> None:
    for choice in (["vsol-0-fast"], ["--lossy", "--speed", "slow"]):
        err = mvc("pipeline", *choice, "--set").err
        assert "stored exactly as given" in err and "--in-place" in err
    assert "mvc commit" not in mvc("pipeline", "lossless", "--set").err


def test_slips_are_named(mvc) -> None:
    def said(line: str) -> str:
        return mvc("pipeline", line, code=3).err

    assert "did you mean vsol-" in said("vsol-2-fast") and "vsol-1-fast" in said("vsol-2-fast")
    assert "did you mean vsol" in said("VSOL")
    assert "vsol is a preset, and a preset stands alone" in said("drift:adwin | vsol")
    assert "stage zstd: its level is not given" in said(
        "xor | zstd"
    ) and "zstd:1 to zstd:22" in said("zstd")
    assert "N is a whole number from 1 to 23, and is not given" in said("xor | lsb")
    assert "nothing stands after the colon" in said("xor | lsb: | zstd:1")
    assert "nothing is named between the bars" in said("xor || zstd:1")
    assert "topk:0.1 and topk-all:0.1" in said("topk:0.1 | topk-all:0.1 | xor")
