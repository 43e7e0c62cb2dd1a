"""Small pieces, chunks and packs, so that small data crosses their borders."""

from __future__ import annotations

import sys

import pytest


def shrink(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Replaces limits (``SLAB=4096``) in every module of mvc that has taken them in."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mvc."):
            for limit, value in limits.items():
                if hasattr(module, limit):
                    monkeypatch.setattr(module, limit, value)
