"""Figures of the benchmarks: docs/performance.md, and others whose command is a benchmark."""

from __future__ import annotations

from .sources import Claim, Stated

__all__ = ["CLAIMS", "STATED"]

CLAIMS: tuple[Claim, ...] = ()
STATED: tuple[Stated, ...] = ()
