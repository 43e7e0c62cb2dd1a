"""Small pieces, chunks and packs, so that small data crosses their borders."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest

import mvc


def shrink(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Replaces limits (``PIECE=4096``) in every module of mvc that has taken them in.

    All of them are imported before: one that is first imported meanwhile would keep them. Not
    those of frameworks, which may not be installed.
    """
    for top in pkgutil.iter_modules(mvc.__path__, "mvc."):
        if top.name not in {"mvc.__main__", "mvc.frameworks"}:
            _import(top.name, top.ispkg)
    for name, module in list(sys.modules.items()):
        if name.startswith("mvc."):
            for limit, value in limits.items():
                if hasattr(module, limit):
                    monkeypatch.setattr(module, limit, value)


def _import(name: str, is_package: bool) -> None:
    module = importlib.import_module(name)
    if is_package:
        for found in pkgutil.walk_packages(module.__path__, f"{name}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
