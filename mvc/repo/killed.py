"""The result of finishing checkouts that killed processes left incomplete.

A checkout first writes a plan, a file that lists the files to replace. If the process is killed,
the next command completes or undoes the checkout with this plan.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

PLANS = "checkouts"
"""Name of the folder in ``.mvc`` with the plans of checkouts (``mvc.io.replacement``)."""


class Interrupted(Struct):
    """What the next command did about checkouts of killed processes.

    ``replaced``: files that were replaced to complete a checkout. ``moved_head``: whether HEAD
    moved. ``given_up``: files that stay unchanged because their checkout was undone.
    ``left_alone``: files that a plan names as temporary files, but that no checkout wrote. These
    files were not deleted.
    """

    replaced: tuple[Path, ...] = ()
    moved_head: bool = False
    given_up: tuple[Path, ...] = ()
    left_alone: tuple[Path, ...] = ()
