"""Small pieces, chunks and packs, so that small data crosses their borders."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest

import mvc
from mvc.errors import NotInstalled


def shrink(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Replaces limits (``PIECE=4096``) in every module of mvc that has taken them in.

    All of them are imported before: one that is first imported meanwhile would keep them. Not
    those of frameworks, which may not be installed, nor those that need torch where it is not.
    """
    for top in pkgutil.iter_modules(mvc.__path__, "mvc."):
        if top.name not in {"mvc.__main__", "mvc.frameworks"}:
            _import(top.name, top.ispkg)
    if "PIECE" in limits:
        limits = {"WINDOW": limits["PIECE"] // 2, **limits}
    for name, module in list(sys.modules.items()):
        if name.startswith("mvc."):
            for limit, value in limits.items():
                if hasattr(module, limit):
                    monkeypatch.setattr(module, limit, value)


def _import(name: str, is_package: bool) -> None:
    try:
        module = importlib.import_module(name)
    except (NotInstalled, ModuleNotFoundError) as error:
        if "torch" not in str(error):
            raise
        return
    if is_package:
        for found in pkgutil.iter_modules(module.__path__, f"{name}."):
            if not found.name.endswith("__main__"):
                _import(found.name, found.ispkg)
