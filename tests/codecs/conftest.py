"""The innermost loops of the codecs: in numpy, and in C where there is a compiler."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.codecs import words


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    """``kernels.c``, compiled for these tests: the checkout has no compiled modules."""
    source = Path(words.__file__).with_name("kernels.c")
    out = tmp_path_factory.mktemp("kernels") / "_kernels.so"
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    flags = ["-O3", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", include]
    try:
        subprocess.run([*compiler, *flags, str(source), "-o", str(out)], check=True)
        spec = importlib.util.spec_from_file_location("mvc.codecs._kernels", out)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (OSError, subprocess.CalledProcessError, ImportError) as error:
        pytest.skip(f"the kernels cannot be compiled and used here: {error}")
    return module


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def arithmetic(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a module with either of the two."""
    before = words.kernels
    words.kernels = request.getfixturevalue("kernels") if request.param == "compiled" else None
    yield
    words.kernels = before
