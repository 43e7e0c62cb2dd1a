"""Checkouts of killed processes: the folder of their plans, and their results."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

PLANS = "checkouts"
"""The folder in ``.mvc`` with plans of running checkouts (``mvc.io.replacement``)."""


class Interrupted(Struct):
    """How checkouts of killed processes ended.

    ``replaced``: files replaced to complete them; ``moved_head``: whether HEAD moved. ``given_up``:
    files left unchanged. ``left_alone``: temporary files named by plans but not written by a
    checkout.
    """

    replaced: tuple[Path, ...] = ()
    moved_head: bool = False
    given_up: tuple[Path, ...] = ()
    left_alone: tuple[Path, ...] = ()
