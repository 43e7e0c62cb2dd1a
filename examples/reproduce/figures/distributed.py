"""Figures of distributed training."""

from __future__ import annotations

from .sources import Claim, Stated

__all__ = ["CLAIMS", "STATED"]

CLAIMS: tuple[Claim, ...] = ()
STATED: tuple[Stated, ...] = ()
