from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import save_file

import mvc as library
from tests.models.project import Project
from tests.models.whole import commit_model


def test_long_lists_are_cut_unless_verbose(mvc) -> None:
    mvc.commit(**{f"t{i:03}": np.full(2, i, np.float32) for i in range(50)})
    assert "and 33 more (-v lists all)" in mvc("show").out
    assert "t049" in mvc("show", "-v").out


def test_what_a_version_carries(mvc, monkeypatch, tmp_path) -> None:
    mvc.commit(1)
    assert "Carries:" not in mvc("show").out
    assert mvc("show", "--code").err == "the version has no source files\n"
    project = Project(tmp_path / "project", monkeypatch)
    project.write({"shown.py": "from torch import nn\n# red \x1b[31m\n\n\nclass Named(nn.Linear):\n"
                   "\tpass\n"})  # fmt: skip
    with library.Repository.open(mvc.folder) as repo:
        made = project.load("shown").Named(3, 2)
        commit_model(repo, library.Architecture(made, {"in_features": 3, "out_features": 2}))
    project.forget()
    for command in ("show", "log"):
        assert "Carries:  code, environment.json, model.json\n" in mvc(command).out
    assert mvc("log", "--json").json["commits"][0]["attached"] == [
        "code", "environment.json", "model.json",
    ]  # fmt: skip
    assert mvc("show", "--code").out.splitlines() == [
        "# call that builds the model: shown.Named(in_features=3, out_features=2)",
        "", "# code/shown.py",
        "from torch import nn", "# red \\x1b[31m", "", "", "class Named(nn.Linear):", "\tpass",
    ]  # fmt: skip
    found = mvc("show", "--code", "--json").json
    assert found["schema"] == "mvc.show.code/1"
    assert "class Named" in found["code"]["code/shown.py"]


def test_lines_of_code_end_where_pythons_do(mvc, monkeypatch, tmp_path) -> None:
    project = Project(tmp_path / "project", monkeypatch)
    project.write({"ends.py": "from torch import nn\r\n# a\u2028b\x85c\x0bd\x1ce\n\x0c\r"
                   "class Named(nn.Linear):\n\tpass\n\n"})  # fmt: skip
    with library.Repository.open(mvc.folder) as repo:
        made = project.load("ends").Named(3, 2)
        commit_model(repo, library.Architecture(made, {"in_features": 3, "out_features": 2}))
    project.forget()
    assert mvc("show", "--code").out.partition("# code/ends.py\n")[2].split("\n") == [
        "from torch import nn", r"# a\u2028b\x85c\x0bd\x1ce", r"\x0c", "class Named(nn.Linear):",
        "\tpass", "", "",
    ]  # fmt: skip


# -- a tensor ----------------------------------------------------------------------------


def test_values_and_summary(mvc) -> None:
    mvc.commit(0, w=np.array([1.0, 0.0, np.nan, -3.0], np.float32))
    lines = mvc("show", "HEAD", "w").out.splitlines()
    assert lines[0].startswith("w  float32 4, 16 B, ")
    assert lines[1] == "min -3  max 1  mean -0.6667  std 1.7  zeros 1  not finite 1"
    assert lines[2] == "[ 1.  0. nan -3.]"


def test_saved_values_are_the_same(mvc) -> None:
    value = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    mvc.commit(0, w=value)
    result = mvc("show", "HEAD", "w", "-o", "w.npy")
    assert result.out == ""
    loaded = np.load(mvc.folder / "w.npy")
    assert loaded.dtype == value.dtype
    assert loaded.tobytes() == value.tobytes()
    assert "already exists" in mvc("show", "HEAD", "w", "-o", "w.npy", code=3).err


def test_bfloat16_is_widened_exactly(mvc) -> None:
    value = torch.randn(5, 7).to(torch.bfloat16)
    save_file({"w": value}, str(mvc.folder / "b.safetensors"))
    mvc("commit", "b.safetensors")
    mvc("show", "HEAD", "w", "-o", "w.npy")
    assert np.array_equal(np.load(mvc.folder / "w.npy"), value.float().numpy())


def test_view_of_a_torch_file(mvc) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    torch.save({"t": base.T, "base": base}, mvc.folder / "m.pt")
    mvc("commit", "m.pt")
    found = mvc("show", "HEAD", "t", "--json").json
    assert found["values"] == base.T.tolist()
    assert found["summary"]["max"] == 11
