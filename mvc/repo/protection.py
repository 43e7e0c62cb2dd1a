"""Protected targets: nothing is recorded there by the way, by whatever makes versions.

The setting ``deploy.protect`` names them. Only a deployment, a rollback and a retraction that say
so (``anyway``) count there; what a fetch brings has happened elsewhere, and is on record.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from mvc.errors import TargetProtected
from mvc.names import is_report, printable
from mvc.repo.context import Context

SETTING = "deploy.protect"


def protecting(context: Context) -> tuple[str, ...]:
    """What the setting names, with ``*`` for any characters."""
    return tuple(str(context.config.get(SETTING)).replace(",", " ").split())


def protected(globs: Iterable[str], targets: Iterable[str]) -> list[str]:
    """Those of ``targets`` that ``globs`` name."""
    globs = tuple(globs)
    return [
        target
        for target in targets
        if not is_report(target) and any(fnmatchcase(target, glob) for glob in globs)
    ]


def refuse_protected(context: Context, target: str, *, anyway: bool = False) -> None:
    """Raises TargetProtected for a target that the setting names, unless ``anyway``."""
    if not anyway:
        refuse_protected_by(protecting(context), target)


def refuse_protected_by(globs: Iterable[str], target: str) -> None:
    """Raises TargetProtected for a target that ``globs`` name."""
    if protected(globs, [target]):
        raise TargetProtected(
            f"{printable(target)} is protected ({SETTING})",
            hint="a deployment, a rollback or a retraction that is meant takes --anyway, in Python "
            "anyway=True; versions are committed without one",
        )
