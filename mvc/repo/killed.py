"""Checkouts of killed processes: the folder with plans of checkouts, and how checkouts ended."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

PLANS = "checkouts"
"""The folder in ``.mvc`` with plans of running checkouts (``mvc.io.replacement``)."""


class Interrupted(Struct):
    """How checkouts of killed processes ended.

    ``replaced``: files that were replaced to complete checkouts. ``moved_head``: whether HEAD
    moved. ``given_up``: files that stay unchanged because their checkout was undone.
    ``left_alone``: temporary files that a plan names, but no checkout wrote.
    """

    replaced: tuple[Path, ...] = ()
    moved_head: bool = False
    given_up: tuple[Path, ...] = ()
    left_alone: tuple[Path, ...] = ()
