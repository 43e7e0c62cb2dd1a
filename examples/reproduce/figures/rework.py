"""Figures of rework: docs/lc.md and the experiment's README."""

from __future__ import annotations

from .sources import Claim, Stated

__all__ = ["CLAIMS", "STATED"]

CLAIMS: tuple[Claim, ...] = ()
STATED: tuple[Stated, ...] = ()
