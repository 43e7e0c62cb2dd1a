"""Type aliases and base classes that all other modules may import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import NoReturn, Self, TypeAlias, TypeVar

from msgspec import Struct

from mvc.errors import WrongUsage

_T = TypeVar("_T")

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Any object with contiguous bytes. (``collections.abc.Buffer`` would need Python 3.12.)"""

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with the amount done, the total amount, and a description of the current step."""

PathName: TypeAlias = str | PathLike[str]

FIRST_RELEASE = ""
"""The ``feature`` of a pipeline stage, dtype or format that every release of mvc supports.

A repository's file ``format`` lists all other features that the repository uses.
"""

Reason: TypeAlias = str
"""A person's reason for an operation."""


class Counted(Struct):
    """Counts progress. Unless ``progress`` is None, calls it with the new count."""

    progress: Progress | None
    total: int
    done: int = 0

    def add(self, count: int, step: str) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.done, self.total), step)

    def iterate(
        self, items: Iterable[_T], step: str, size: Callable[[_T], int] = lambda _: 1
    ) -> Iterator[_T]:
        """Yields ``items``. Adds the ``size`` of an item when the caller asks for the next item."""
        for item in items:
            yield item
            self.add(size(item), step)


class Closing:
    """Base of classes with ``close``, which a ``with`` block calls at its end."""

    def close(self) -> None:
        """Releases resources. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Unpicklable:
    """Base of classes whose objects have open files or threads, and so cannot be pickled."""

    def __reduce_ex__(self, _: object) -> NoReturn:
        """Raises WrongUsage instead of pickle's obscure error about an internal lock."""
        name = type(self).__name__
        raise WrongUsage(
            f"a {name} cannot be pickled or copied: it has open files",
            hint=f"pass the repository's path, and open a {name} in each process, such as "
            "a DataLoader worker",
        )
