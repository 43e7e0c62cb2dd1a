"""Which source files make a class: what is found, and what is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mvc
from mvc.errors import CannotRecord
from mvc.models.sources import place_of, sources_of
from tests.models.project import Project


def test_files_are_found_through_imports_at_any_depth(project: Project) -> None:
    net = project.load("nets.net")
    found = sources_of([net.Plain])
    assert list(found.files) == [
        "code/nets/__init__.py", "code/nets/blocks.py", "code/nets/net.py", "code/nets/scale.py",
    ]  # fmt: skip
    assert found.files["code/nets/scale.py"] == b"FACTOR = 2\n"
    assert found.packages == {"torch": str(torch.__version__)}
    assert "nets.unused" not in sys.modules


def test_further_modules_are_named(project: Project) -> None:
    net = project.load("nets.net")
    assert "code/nets/unused.py" in sources_of([net.Plain], ["nets.unused"]).files
    assert "nets.unused" not in sys.modules
    with pytest.raises(CannotRecord, match=r"cannot record the module nets\.gone"):
        sources_of([net.Plain], ["nets.gone"])


def test_a_class_of_an_installed_package_is_named_with_its_version() -> None:
    found = sources_of([torch.nn.Linear])
    assert (found.files, found.packages) == ({}, {"torch": str(torch.__version__)})
    assert place_of(torch.nn.Linear) == ("torch.nn.modules.linear", "Linear")


def test_other_ways_to_import(project: Project) -> None:
    project.write({
        "loose.py": "import deep.er.module as m\nfrom deep import other, constant\nimport gone_\n",
        "deep/__init__.py": "constant = 1\n",
        "deep/er/module.py": "from ... import nothing\nfrom .. import *\nfrom ..more import x\n",
        "deep/other.py": "import loose\n",
        "deep/more.py": "x = 1\n",
        "model.py": "try:\n    import loose\nexcept ImportError:\n    pass\nclass A: pass\n",
    })  # fmt: skip
    found = sources_of([project.load("model").A])
    assert list(found.files) == [
        "code/deep/__init__.py", "code/deep/er/module.py", "code/deep/more.py",
        "code/deep/other.py", "code/loose.py", "code/model.py",
    ]  # fmt: skip


def test_an_edited_file_is_refused_until_it_is_what_runs(project: Project) -> None:
    project.write({"edited.py": "class A:\n    me = None\n    def f(self):\n        return 1\n"})
    module = project.load("edited")
    module.A.me = module.A  # classes that name themselves are looked at once
    project.write({"edited.py": "# moved\nclass A:\n    me = None\n    def f(self): return 1\n"})
    sources_of([module.A])  # the same code elsewhere in the file
    project.write({"edited.py": "class B:\n    def f(self):\n        return 2\n"})
    other = project.load("nets.net")
    sources_of([other.Plain])
    project.write({"edited2.py": "class A:\n    def f(self):\n        return 1\n"})
    module = project.load("edited2")
    project.write({"edited2.py": "class A:\n    def f(self):\n        return 2\n"})
    with pytest.raises(CannotRecord, match=r"edited2\.py was edited after its import"):
        sources_of([module.A])


def test_what_was_recorded_once_stays_recorded_while_a_file_is_edited(project: Project) -> None:
    project.write({"running.py": "class A:\n    def f(self):\n        return 1\n"})
    module = project.load("running")
    before = sources_of([module.A])
    project.write({"running.py": "class A:\n    def f(self):\n        return 2\n"})
    assert sources_of([module.A]) == before
    exec("def f(self):\n    return 3\n", vars(module))  # as a notebook reloads methods
    module.A.f = module.f
    module.f.__code__ = module.f.__code__.replace(co_filename=module.__file__)
    with pytest.raises(CannotRecord, match="was edited"):
        sources_of([module.A])


EDITS = {
    "a default": (
        "def f(a, lr=0.1):\n    return a\n", "def f(a, lr=0.2):\n    return a\n",
        r"f: the default of lr is 0\.1 in memory, 0\.2 in the file",
    ),
    "a default that became another type": (
        "def f(a, lr=1):\n    return a\n", "def f(a, lr=1.0):\n    return a\n",
        r"f: the default of lr is 1 in memory, 1\.0 in the file",
    ),
    "a negative zero": (
        "def f(a=0.0):\n    return a\n", "def f(a=-0.0):\n    return a\n", r"f: the default of a",
    ),
    "a default by keyword": (
        "def f(*, lr=(1, [2])):\n    return lr\n", "def f(*, lr=(1, [3])):\n    return lr\n",
        r"f: the default of lr",
    ),
    "a default that is there no more": (
        "def f(lr=1):\n    return lr\n", "def f(lr):\n    return lr\n",
        r"f: lr has the default 1 in memory, but none in the file",
    ),
    "a default of a method": (
        "class A:\n    def f(self, n=16):\n        return n\n",
        "class A:\n    def f(self, n=32):\n        return n\n",
        r"A\.f: the default of n is 16 in memory, 32 in the file",
    ),
    "a constant of another type": (
        "def f():\n    return 1\n", "def f():\n    return True\n", r"f: its code differs",
    ),
    "a function inside": (
        "def f():\n    def g():\n        return 1\n    return g\n",
        "def f():\n    def g():\n        return 2\n    return g\n", r"f: its code differs",
    ),
    "the setter of a property": (
        "class A:\n    @property\n    def x(self):\n        return 1\n"
        "    @x.setter\n    def x(self, v):\n        self.y = v\n",
        "class A:\n    @property\n    def x(self):\n        return 1\n"
        "    @x.setter\n    def x(self, v):\n        self.z = v\n", r"A\.x: its code differs",
    ),
    "a wrapper": (
        "from functools import wraps\ndef twice(g):\n    @wraps(g)\n    def w():\n"
        "        return 2 * g()\n    return w\n@twice\ndef f():\n    return 1\n",
        "from functools import wraps\ndef twice(g):\n    @wraps(g)\n    def w():\n"
        "        return 3 * g()\n    return w\n@twice\ndef f():\n    return 1\n",
        r"twice: its code differs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_of_what_a_function_was_defined_with_is_named(project: Project, what: str) -> None:
    before, after, message = EDITS[what]
    project.write({"defined.py": before})
    module = project.load("defined")
    target = getattr(module, "f", None) or module.A
    project.write({"defined.py": "# other lines\n\n" + before})
    sources_of([target])
    project.write({"defined.py": after})
    with pytest.raises(CannotRecord, match=rf"defined\.py was edited after .*: {message}"):
        sources_of([module.A if hasattr(module, "A") else module.f], ["defined"])


CONSTANTS = {
    "a constant of the module": (
        "EPOCHS = 3\ndef f():\n    return EPOCHS\n",
        "EPOCHS = 4\ndef f():\n    return EPOCHS\n",
        r"EPOCHS is 3 in memory, 4 in the file",
    ),
    "an attribute of a class": (
        "class A:\n    sizes: tuple = (1, 2)\n",
        "class A:\n    sizes: tuple = (1, 3)\n",
        r"A\.sizes is \(1, 2\) in memory, \(1, 3\) in the file",
    ),
}


@pytest.mark.parametrize("what", CONSTANTS)
def test_a_recipe_begins_with_the_values_of_the_file(project: Project, what: str) -> None:
    before, after, message = CONSTANTS[what]
    project.write({"valued.py": before})
    module = project.load("valued")
    target = getattr(module, "f", None) or module.A
    sources_of([target], values=True)
    project.write({"valued.py": after})
    for _ in range(2):  # what was recorded before is still what runs
        sources_of([target], values=True)
    project.write({"valued2.py": before})
    module = project.load("valued2")
    project.write({"valued2.py": after})
    target = getattr(module, "f", None) or module.A
    sources_of([target])
    with pytest.raises(CannotRecord, match=message):
        sources_of([target], values=True)


def test_what_a_file_says_that_it_changes_is_no_constant(project: Project) -> None:
    project.write({
        "moving.py": "import math\nCALLS = 0\nKNOWN = []\nMODE = None\nTWICE = 1\nTWICE = 2\n"
        "len = len\ndef g(size=len, kind=math.pow, text=str.lower, none=MODE):\n    return size\n"
        "class Outer:\n    N = 3\n    class Inner:\n        N = N_ = 4\n"
        "    def h(self, n=N, make=dict.fromkeys):\n        return n\n"
        "class A:\n    count = 0\n    def f(self, memo={}, pi=math.pi, made=list((1,))):\n"
        "        global CALLS\n        CALLS += 1\n        A.count += 1\n        memo[1] = 2\n"
        "        KNOWN.append(3)\n        return CALLS\n"
    })  # fmt: skip
    module = project.load("moving")
    module.A().f()
    assert sources_of([module.A], values=True).files
    module.MODE = "fast"  # set by another file
    with pytest.raises(
        CannotRecord, match=r"moving\.py .*MODE is 'fast' in memory, None in the file"
    ):
        sources_of([module.A], values=True)


@pytest.mark.parametrize("where", ["f", "A.g", "A.B.h"])
@pytest.mark.parametrize("how", ["name", "code"])
def test_a_function_that_was_replaced_is_not_the_files(
    project: Project, where: str, how: str
) -> None:
    project.write({
        "swapped.py": "import functools\ndef f(n=1):\n    return n\nclass A:\n    def g(self): 0\n"
        "    def __new__(cls):\n        return super().__new__(cls)\n"
        "    @functools.cache\n    def k(self): 0\n    class B:\n        def h(self): 0\n"
    })  # fmt: skip
    module = project.load("swapped")
    assert sources_of([module.A], values=True).files
    module.A.k = module.A.B.h  # what a decorator made is not known
    module.A.B.h = functools.wraps(module.A.B.h)(lambda *_: None)  # as frameworks do
    assert sources_of([module.A], values=True).files
    *path, name = where.split(".")
    owner = functools.reduce(getattr, path, module)
    if how == "name":
        setattr(owner, name, lambda *_: 2)
    else:
        getattr(owner, name).__code__ = (lambda *_: 2).__code__
    sources_of([module.A])
    if (where, how) != ("A.B.h", "code"):  # of a wrapper, the function inside counts
        with pytest.raises(CannotRecord, match=rf"{where} was replaced by another function"):
            sources_of([module.A], values=True)


def _local() -> type:
    class Inside:
        pass

    return Inside


REFUSED = {
    "a lambda cannot be recorded": lambda: None,
    "Inside is defined inside a function": _local(),
    "a partial cannot be recorded": functools.partial(int, 1),
    "does not define it under this name": type("Made", (), {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_imported_again_is_refused_by_name(message: str) -> None:
    with pytest.raises(CannotRecord, match=message):
        sources_of([REFUSED[message]])


def test_compiled_and_broken_and_large_sources(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        {"fast.cpython-311-x86_64-linux-gnu.so": "", "uses.py": "import fast\nclass A: 0"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fast", None)  # importing it would fail
        with pytest.raises(ImportError):
            project.load("uses")
    project.write({"late.py": "class A:\n    def f(self):\n        import fast\n"})
    with pytest.raises(CannotRecord, match=r"fast is compiled \(fast\.cpython"):
        sources_of([project.load("late").A])
    project.write({"broken.py": "def (:\n", "late2.py": "def f():\n    import broken\n"})
    with pytest.raises(CannotRecord, match=r"broken\.py is not valid Python: invalid syntax"):
        sources_of([project.load("late2").f])
    (project.folder / "latin.py").write_bytes(b"# coding: latin-1\nX = '\xe9'\ndef f(): 0\n")
    with pytest.raises(CannotRecord, match=r"latin\.py is not UTF-8"):
        sources_of([project.load("latin").f])
    monkeypatch.setattr("mvc.models.sources.MAX_CODE_FILES", 3)
    with pytest.raises(CannotRecord, match="more than a version can store"):
        sources_of([project.load("nets.net").Plain])


SCRIPT = """
import sys
import mvc
import torch
from torch import nn

WIDTH = 3

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
{middle}
if __name__ == "__main__":
    with mvc.Repository.open_or_init("models") as repo:
        done = repo.commit(Net().state_dict(), attachments=mvc.describe_model(Net()))
        print(mvc.recipes.model(repo, done).call, *mvc.recipes.code(repo, done))
"""


def _run(folder: Path, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    root = str(Path(mvc.__file__).parents[1])
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env={"PYTHONPATH": root}, input=text,
        capture_output=True, text=True,
    )  # fmt: skip


def test_a_class_of_the_script_that_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(middle=""))
    ran = _run(tmp_path, "train.py")
    assert ran.stdout == "train.Net() code/train.py\n", ran.stderr
    (tmp_path / "train.py").write_text(SCRIPT.format(middle="print('training')"))
    ran = _run(tmp_path, "train.py")
    assert "train.py line 13 would run whenever the model is loaded" in ran.stderr
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "__main__.py").write_text(SCRIPT.format(middle=""))
    ran = _run(tmp_path, "-m", "pack")
    assert ran.stdout == "pack.__main__.Net() code/pack/__init__.py code/pack/__main__.py\n"
    spawned = (
        "import torch.multiprocessing as mp\n"
        + SCRIPT.format(middle="").split("if __name")[0]
        + "\ndef work(_):\n    with mvc.Repository.open('models') as repo:\n"
        "        done = repo.commit(Net().state_dict(), attachments=mvc.describe_model(Net()))\n"
        "        print(mvc.recipes.model(repo, done).call, "
        "*mvc.recipes.code(repo, done), flush=True)\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=1)\n"
    )
    (tmp_path / "spawned.py").write_text(spawned)
    ran = _run(tmp_path, "spawned.py")
    assert ran.stdout == "spawned.Net() code/spawned.py\n", ran.stderr
    ran = _run(tmp_path, "-", text=SCRIPT.format(middle=""))
    assert "__main__.Net has no source file" in ran.stderr
