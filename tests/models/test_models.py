"""A commit carries the model's code; load_model builds it again, elsewhere and later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch import nn

import mvc
import mvc.recipes as recipes
from mvc.errors import (
    CannotBuild,
    CannotRecord,
    DamagedData,
    DoesNotFit,
    NotTrusted,
    UnknownPath,
    UnsupportedFormat,
    WouldOverwrite,
    WrongUsage,
)
from mvc.models.models import NAME, StoredModel
from tests.models.project import Project
from tests.models.whole import commit_model


def same(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return list(one) == list(other) and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def test_a_model_is_built_where_its_project_is_not(
    repo: mvc.Repository, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project.load("nets.net").Plain()
    done = commit_model(repo, made, message="whole", metrics={"acc": 0.5})
    x = torch.randn(2, 3)
    expected = made(x).detach()
    assert done.commit.attached == ("code", "environment.json", "model.json")
    assert recipes.model(repo).call == "nets.net.Plain()"
    assert recipes.model(repo).packages == {"torch": str(torch.__version__)}
    project.forget()
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    loaded = mvc.load_model(repo, "HEAD", trust=True)
    assert torch.equal(before, torch.get_rng_state())
    assert same(made, loaded) and torch.equal(loaded(x), expected)
    assert os.listdir(empty) == []


def test_arguments_are_given_offered_or_refused(repo: mvc.Repository, project: Project) -> None:
    net = project.load("nets.net")
    made = net.Net(4, 2, dropout=0.5)
    with pytest.raises(CannotRecord, match=r"Net has parameters \(width, depth=1, dropout=0\.0\)"):
        commit_model(repo, made)
    assert repo.head().commit is None
    arguments = {"width": 4, "depth": 2, "dropout": 0.5}
    commit_model(repo, mvc.Architecture(made, arguments))
    loaded = mvc.load_model(repo, trust=True)
    assert same(made, loaded) and loaded.drop.p == 0.5
    made.mvc_arguments = arguments
    commit_model(repo, made)
    assert recipes.model(repo).arguments == arguments
    with pytest.raises(CannotRecord, match=r"do not fit Net: missing a required argument: 'width'"):
        commit_model(repo, mvc.Architecture(made, {}))
    with pytest.raises(CannotRecord, match=r"Net does not build .*: blocks\.1\.line\.w"):
        commit_model(repo, mvc.Architecture(made, {"width": 4}))
    with pytest.raises(CannotRecord, match=r"weight is \(5, 5\), not \(4, 4\), and 3 more"):
        commit_model(repo, mvc.Architecture(made, {"width": 5, "depth": 2}))


def test_a_function_makes_what_no_class_can(repo: mvc.Repository, project: Project) -> None:
    make = project.load("nets.net").make
    made = make((2, 3, 4))
    with pytest.raises(CannotRecord, match=r"Sequential has parameters \(\*args"):
        commit_model(repo, made)
    with pytest.raises(WrongUsage, match="describing a model needs its state"):
        mvc.describe_model(mvc.Architecture(make, {"sizes": (2, 3, 4)}))
    commit_model(repo, mvc.Architecture(make, {"sizes": (2, 3, 4)}), made.state_dict())
    assert recipes.model(repo).arguments == {"sizes": (2, 3, 4)}
    assert same(made, mvc.load_model(repo, trust=True))
    small = project.load("nets.net").Net.small
    made = small(3)
    commit_model(repo, mvc.Architecture(small, {"width": 3}), made.state_dict())
    assert recipes.model(repo).call == "nets.net.Net.small(width=3)"
    assert same(made, mvc.load_model(repo, trust=True))


PLAIN: dict[str, Any] = {
    "an object": (object(), r"the argument a\.1\.b is not plain data: a object"),
    "a tensor": (torch.zeros(2), "a Tensor"),
    "a class": (nn.ReLU, "a type"),
    "another mapping": (Counter(), "a Counter"),
}


@pytest.mark.parametrize("case", PLAIN)
def test_arguments_are_plain_data(repo: mvc.Repository, project: Project, case: str) -> None:
    project.write({"any.py": "from torch import nn\nclass Any(nn.Module):\n"
                   "    def __init__(self, a=0):\n        super().__init__()\n"
                   "        self.l = nn.Linear(2, 2)\n"})  # fmt: skip
    made = project.load("any").Any()
    value, message = PLAIN[case]
    with pytest.raises(CannotRecord, match=message):
        commit_model(repo, mvc.Architecture(made, {"a": [0, {"b": value}]}))
    assert repo.head().commit is None
    kept = {"a": [0, {"b": (1, "x", None, True, 2.5, {1: float("inf")})}]}
    commit_model(repo, mvc.Architecture(made, kept))
    assert recipes.model(repo).arguments == kept


def test_what_is_no_model_is_refused(repo: mvc.Repository) -> None:
    with pytest.raises(WrongUsage, match=r"model is of type dict: it must be a torch\.nn\.Module"):
        mvc.describe_model({})
    with pytest.raises(WrongUsage, match="arguments must be a mapping"):
        mvc.Architecture(nn.Linear, [1])
    with pytest.raises(WrongUsage, match="sources must be a list"):
        mvc.Architecture(nn.Linear, {}, "nets")
    with pytest.raises(CannotRecord, match="a lambda"):
        mvc.describe_model(mvc.Architecture(lambda: nn.Linear(1, 1)), {"w": torch.zeros(1)})
    wrong = {"in_features": 2, "out_features": "x\ny"}
    with pytest.raises(CannotRecord, match=r"Linear cannot be called with these arguments: T") as e:
        commit_model(repo, mvc.Architecture(nn.Linear(2, 2), wrong))
    assert "\n" not in str(e.value)
    with pytest.raises(CannotRecord, match="a lazy module"):
        commit_model(repo, mvc.Architecture(nn.LazyLinear(3), {"out_features": 3}))
    assert repo.head().commit is None


def test_a_class_of_an_installed_package(repo: mvc.Repository) -> None:
    made, given = nn.Linear(2, 3), {"in_features": 2, "out_features": 3}
    with pytest.raises(CannotRecord, match="is wrapped"):
        mvc.describe_model(mvc.Architecture(nn.DataParallel(made), given))
    commit_model(repo, mvc.Architecture(made, given))
    assert recipes.code(repo) == {}
    with pytest.raises(NotTrusted, match=r"would run torch\.nn\.modules\.linear\.Linear\(in_fe"):
        mvc.load_model(repo)
    assert type(mvc.load_model(repo, trust=True)) is nn.Linear


def test_a_loaded_model_is_committed_again(repo: mvc.Repository, project: Project) -> None:
    net = project.load("nets.net")
    first = commit_model(repo, mvc.Architecture(net.Net(2), {"width": 2}))
    project.forget()
    loaded = mvc.load_model(repo, first, trust=True)
    with torch.no_grad():
        next(loaded.parameters()).add_(1)
    second = commit_model(repo, loaded)
    assert recipes.model(repo, second) == recipes.model(repo, first)
    assert recipes.code(repo, second) == recipes.code(repo, first)
    again = mvc.load_model(repo, second, trust=True)
    assert same(again, loaded) and type(again) is type(loaded)
    made = mvc.load_model(repo, first, trust=True)
    assert not same(made, loaded)


def test_two_versions_of_the_code_side_by_side(repo: mvc.Repository, project: Project) -> None:
    text = (
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.l = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.l(x) * {}\n"
    )
    ids = []
    for factor in (1, 3):
        project.write({"versioned.py": text.format(factor)})
        sys.modules.pop("versioned", None)
        made = project.load("versioned").Net()
        ids.append(commit_model(repo, made).id)
    one, three = (mvc.load_model(repo, id_, trust=True) for id_ in ids)
    three.load_state_dict(one.state_dict())
    x = torch.ones(1, 2)
    assert torch.equal(one(x) * 3, three(x))


def test_other_dtypes_and_tied_weights(repo: mvc.Repository, project: Project) -> None:
    project.write({"tied.py": """
        import torch
        from torch import nn
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
                self.b.weight = self.a.weight
                self.register_buffer("scale", torch.ones(3), persistent=False)
                self.register_buffer("count", torch.zeros((), dtype=torch.int64))
    """})  # fmt: skip
    made = project.load("tied").Tied().bfloat16()
    commit_model(repo, made)
    loaded = mvc.load_model(repo, trust=True)
    assert same(made, loaded) and loaded.scale.dtype == torch.bfloat16
    assert loaded.a.weight is loaded.b.weight and loaded.a.weight.requires_grad
    made.a.float()
    commit_model(repo, made)
    loaded = mvc.load_model(repo, trust=True)
    assert same(made, loaded) and loaded.b.bias.dtype == torch.bfloat16
    assert loaded.scale.dtype == torch.float32


def test_without_trust_the_files_are_named_and_nothing_runs(
    repo: mvc.Repository, project: Project
) -> None:
    commit_model(repo, project.load("nets.net").Plain())
    modules = set(sys.modules)
    with pytest.raises(NotTrusted) as caught:
        mvc.load_model(repo)
    assert "nets.net.Plain() from code/nets/__init__.py, code/nets/blocks.py, " in str(caught.value)
    assert f"mvc show --code {repo.head().commit.short}" in str(caught.value.hint)
    for almost in (1, "yes"):
        with pytest.raises((NotTrusted, WrongUsage)):
            mvc.load_model(repo, trust=almost)
    assert {m for m in set(sys.modules) - modules if m.startswith("mvc_stored")} == set()


def test_a_version_without_code(repo: mvc.Repository) -> None:
    repo.commit({"w": torch.zeros(2)})
    with pytest.raises(UnknownPath, match="has weights, but no code that builds a model"):
        mvc.load_model(repo, trust=True)
    with pytest.raises(UnknownPath, match="has no recorded environment"):
        recipes.environment(repo)
    assert recipes.code(repo) == {}


def _committed(repo: mvc.Repository, code: str, record: dict[str, Any]) -> str:
    """A version that carries what no honest process would have written."""
    fields = {"schema": "mvc.model/1", "module": "net", "name": "Net", "arguments": {"dict": {}},
              "weights": "model.safetensors", "packages": {"torch": "1"},
              "files": {"code/net.py": blake3(code.encode()).hexdigest()}}  # fmt: skip
    attachments = {"code/net.py": code.encode(), NAME: json.dumps(fields | record).encode()}
    state = {"l.weight": torch.zeros(2, 2), "l.bias": torch.zeros(2)}
    return str(repo.commit(state, attachments=attachments).id)


GOOD = (
    "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, width=2):\n"
    "        super().__init__()\n        self.l = nn.Linear(width, width)\n"
)
BAD: dict[str, tuple[str, dict[str, Any], type[mvc.MvcError], str]] = {
    "does not import": ("import gone_", {}, CannotBuild, r"No module named 'gone_' \(code/net"),
    "no class": (GOOD, {"name": "Net.Other"}, CannotBuild, r"code/net\.py has no Net\.Other"),
    "arguments": (GOOD, {"arguments": {"dict": {"x": 1}}},
                  CannotBuild, r"net\.Net\(x=1\) fails: TypeError"),
    "weights": (GOOD, {"arguments": {"dict": {"width": 3}}},
                DoesNotFit, r"does not fit net\.Net: l\.weig"),
    "no weights": (GOOD, {"weights": "b"}, UnknownPath, "the version has no path b"),
    "no module": ("def Net(): return 3", {}, CannotBuild, r"returns a int, not a torch\.nn\.Mod"),
    "fails": ("def Net():\n    raise KeyError('k')", {}, CannotBuild, r"KeyError: 'k' .*line 2"),
    "exits": ("def Net():\n    raise SystemExit", {}, CannotBuild, "SystemExit"),
    "hash": (GOOD, {"files": {"code/net.py": "0"}}, DamagedData, "recorded hash"),
    "absent": (GOOD, {"files": {"code/a.py": "0"}}, UnknownPath, r"has no attachment code/a\.py"),
    "outside": (GOOD, {"files": {"code/../a.py": "0"}}, DamagedData, "not a valid description"),
    "absolute": (GOOD, {"weights": "/etc/passwd"}, DamagedData, "not a valid description"),
    "module": (GOOD, {"module": "a/b"}, DamagedData, "not a valid description"),
    "types": (GOOD, {"arguments": [1]}, DamagedData, "not a valid description"),
    "newer": (GOOD, {"schema": "mvc.model/2"}, UnsupportedFormat, "mvc.model/2"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_code_is_one_clear_line(repo: mvc.Repository, case: str) -> None:
    code, record, error, message = BAD[case]
    rev = _committed(repo, code, record)
    with pytest.raises(error, match=message) as caught:
        mvc.load_model(repo, rev, trust=True)
    assert "\n" not in str(caught.value)


def test_a_record_is_read_as_it_was_written() -> None:
    made = StoredModel("a.b", "C.d", {"x": (1, [2, ()])}, "m", {"code/a/b.py": "0"}, {"p": "1"})
    assert StoredModel.decode(made.encoded) == made


def test_a_folder_that_a_stranger_can_use(
    repo: mvc.Repository, project: Project, tmp_path: Path
) -> None:
    made = mvc.Architecture(project.load("nets.net").Net(3, 2), {"width": 3, "depth": 2})
    commit_model(repo, made)
    project.forget()
    folder = tmp_path / "whole"
    done = mvc.export_model(repo, "HEAD", folder)
    names = {str(Path(name).relative_to(folder)) for name in done.written}
    assert names == {
        "code/nets/__init__.py", "code/nets/blocks.py", "code/nets/net.py",
        "code/nets/scale.py", "environment.json", "load.py", "model.json", "model.safetensors",
    }  # fmt: skip
    with pytest.raises(WouldOverwrite, match="exists already"):
        mvc.export_model(repo, "HEAD", folder)
    mvc.export_model(repo, "HEAD", folder, force=True)
    used = (
        "import sys; sys.modules['mvc'] = None; from load import load_model; "
        "print(sum(p.sum().item() for p in load_model().parameters()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", used], cwd=folder, env={}, capture_output=True, text=True
    )
    total = sum(p.sum().item() for p in made.model.parameters())
    assert float(ran.stdout) == pytest.approx(total), ran.stderr


def test_a_folder_is_not_left_through_links(
    repo: mvc.Repository, project: Project, tmp_path: Path
) -> None:
    commit_model(repo, project.load("nets.net").Plain())
    (tmp_path / "aim").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "code").symlink_to(tmp_path / "aim")
    with pytest.raises(mvc.MvcError):
        mvc.export_model(repo, "HEAD", tmp_path / "out", force=True)
    assert os.listdir(tmp_path / "aim") == []


def test_attachments_are_not_inherited(repo: mvc.Repository) -> None:
    state, here = {"w": torch.zeros(2)}, mvc.Environment.current()
    done = repo.commit(state, attachments={"environment.json": here.encoded})
    assert done.commit.attached == ("environment.json",)
    assert recipes.environment(repo) == here
    assert repo.commit(state).commit.attached == ()


def test_code_and_environment_are_stored_once(repo: mvc.Repository, project: Project) -> None:
    made = project.load("nets.net").Plain()
    commit_model(repo, made)
    ids = set()
    for _ in range(3):
        with torch.no_grad():
            made.block.line.bias.add_(1)
        done = commit_model(repo, made)
        ids |= {e.content_id for e in repo.manifest(done).attached}
    assert len(ids) == len(repo.manifest("HEAD").attached)


def test_a_lossy_pipeline_and_another_path(repo: mvc.Repository, project: Project) -> None:
    made = project.load("nets.net").Plain()
    commit_model(repo, made, path="nets/plain.safetensors", states={"more": {"x": torch.ones(1)}})
    assert same(mvc.load_model(repo, trust=True), made)
    done = commit_model(repo, made, pipeline="vsol-0-fast", path="nets/plain.safetensors")
    loaded = mvc.load_model(repo, trust=True).state_dict()
    assert all(torch.equal(loaded[name], done.state[name]) for name in loaded)


def test_a_module_imported_by_a_call_is_the_recorded_one(
    repo: mvc.Repository, project: Project
) -> None:
    project.write(
        {
            "plugged.py": """
                import importlib

                from torch import nn


                class Plugged(nn.Module):
                    def __init__(self):
                        super().__init__()
                        plug = importlib.import_module("helpers.plug")
                        self.line = nn.Linear(2, 2)
                        self.factor = plug.FACTOR
            """,
            "helpers/__init__.py": "",
            "helpers/plug.py": "FACTOR = 1\n",
        }
    )
    model = project.load("plugged").Plugged()
    given = mvc.Architecture(model, {}, sources=["helpers.plug"])
    commit_model(repo, given)
    assert "code/helpers/plug.py" in recipes.code(repo)
    sys.modules["helpers.plug"].FACTOR = 2  # the live module, edited meanwhile
    project.write({"helpers/plug.py": "FACTOR = 2\n"})
    assert mvc.load_model(repo, trust=True).factor == 1
    project.forget()
    assert mvc.load_model(repo, trust=True).factor == 1
