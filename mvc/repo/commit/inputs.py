"""What a caller of the Python interface hands over as the content of a version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from os import PathLike
from pathlib import Path

from mvc.errors import WrongUsage

__all__ = ["paths_of"]


def paths_of(given: object) -> list[Path]:
    """One path or several, as a list. WrongUsage for anything else, naming what is accepted."""
    if isinstance(given, str | PathLike):
        return [Path(given)]
    if not isinstance(given, Sequence | Set | Iterator) or isinstance(given, bytes | bytearray):
        raise _refused(given, "")
    listed = []
    for item in given:
        if not isinstance(item, str | PathLike):
            raise _refused(item, f"a {type(given).__name__} with ")
        listed.append(Path(item))
    return listed


def _refused(given: object, before: str) -> WrongUsage:
    name = type(given).__name__
    hint = "name a tensor by a mapping: {'weight': tensor}"
    if callable(getattr(given, "state_dict", None)):
        hint = "pass its tensors: model.state_dict()"
    return WrongUsage(
        f"commit takes a mapping of tensors, or paths of files and folders, not {before}a {name}",
        hint=hint,
    )
