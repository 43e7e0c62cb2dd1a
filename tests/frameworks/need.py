"""Frameworks that a test needs: absent ones skip it, where they are required they fail it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.variables import variable

__all__ = ["need"]


def need(*names: str) -> Any:
    """The first module named, once all can be imported.

    Call it at the head of a test module. ``MVC_REQUIRE_FRAMEWORKS=1`` makes a failure of what
    would be skipped, so that a run that is to try everything cannot pass without having done so.
    """
    modules = []
    for name in names:
        if variable("MVC_REQUIRE_FRAMEWORKS") == "1":
            modules.append(import_module(name))
        else:
            modules.append(pytest.importorskip(name))
    return modules[0]
