"""Checkouts of processes that were killed: where their plans are, and what became of them."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

PLANS = "checkouts"
"""The folder in ``.mvc`` of the plans of checkouts that are under way (``mvc.io.replacement``)."""


class Interrupted(Struct):
    """What became of checkouts whose process was killed.

    ``replaced``: the files that were replaced to complete them, ``moved_head``: whether HEAD was.
    ``given_up``: the files that were left as they are. ``left_alone``: temporary files that the
    plans name and no checkout wrote.
    """

    replaced: tuple[Path, ...] = ()
    moved_head: bool = False
    given_up: tuple[Path, ...] = ()
    left_alone: tuple[Path, ...] = ()
