"""Type aliases shared by all layers (layer 0)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import NoReturn, Self, TypeAlias

from msgspec import Struct

from mvc.errors import WrongUsage

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Anything with contiguous bytes; ``collections.abc.Buffer`` needs Python 3.12."""

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with bytes done, bytes in total, and a description of the current step."""

PathName: TypeAlias = str | PathLike[str]

FIRST_RELEASE = ""
"""The feature of a stored code that needs no flag in the file ``format``."""

Reason: TypeAlias = str
"""Why an operation is done, in a person's words."""


class Counted(Struct):
    """Adds up what is done, and reports it; without a ``progress`` it only adds up."""

    progress: Progress | None
    total: int
    done: int = 0

    def add(self, count: int, what: str) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.done, self.total), what)


class Closing:
    """Closed at the end of a ``with`` block."""

    def close(self) -> None:
        """Ends it; a second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Unpicklable:
    """A class whose objects have open files or threads, which no other process can use."""

    def __reduce_ex__(self, _: object) -> NoReturn:
        """Raises WrongUsage, in place of an error of pickle about a lock inside."""
        name = type(self).__name__
        raise WrongUsage(
            f"a {name} cannot be pickled or copied: it has open files",
            hint=f"pass the path of the repository, and open a {name} in each process that needs "
            "one, as in a DataLoader's worker",
        )
