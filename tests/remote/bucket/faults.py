"""Stores that fail, lie or count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from mvc.errors import RemoteUnreachable
from mvc.remote.transports.bucket.objects import Objects, StoredObject, Versioned
from mvc.testing import Killed
from mvc.types import Bytes

T = TypeVar("T")


class Passing(Objects):
    """Passes every operation on; ``calls`` are their names, in order."""

    def __init__(self, inner: Objects) -> None:
        self.url = inner.url
        self.inner = inner
        self.calls: list[str] = []

    def call(self, operation: str, name: str, act: Callable[[], T]) -> T:
        self.calls.append(f"{operation} {name.partition('/')[0]}")
        return act()

    def read(self, name: str, limit: int) -> bytes | None:
        return self.call("read", name, lambda: self.inner.read(name, limit))

    def read_range(self, name: str, start: int, length: int) -> bytes | None:
        return self.call("range", name, lambda: self.inner.read_range(name, start, length))

    def write(self, name: str, parts: Iterable[Bytes], size: int) -> None:
        self.call("write", name, lambda: self.inner.write(name, parts, size))

    def read_version(self, name: str, limit: int, known: str = "") -> Versioned | None:
        return self.call("look", name, lambda: self.inner.read_version(name, limit, known))

    def swap(self, name: str, data: bytes, known: str) -> str | None:
        return self.call("swap", name, lambda: self.inner.swap(name, data, known))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return iter(self.call("list", prefix, lambda: [*self.inner.list(prefix)]))

    def delete(self, names: Sequence[str]) -> None:
        self.call("delete", names[0] if names else "", lambda: self.inner.delete(names))

    def now_ns(self) -> int:
        return self.call("now", "", self.inner.now_ns)


class Fault:
    """The ``at``-th operation (from 1) of all stores fails, after its effect if ``after``.

    With ``kills`` the process is killed there: nothing is done any more.
    """

    def __init__(self, at: int, *, after: bool, kills: bool = False) -> None:
        self.at, self.after, self.kills = at, after, kills
        self.count = 0
        self.failed = ""


class Failing(Passing):
    """A store whose operations a fault counts."""

    def __init__(self, inner: Objects, fault: Fault) -> None:
        super().__init__(inner)
        self.fault = fault

    def call(self, operation: str, name: str, act: Callable[[], T]) -> T:
        fault = self.fault
        fault.count += 1
        if fault.kills and fault.count > fault.at:
            raise Killed
        if fault.count != fault.at:
            return act()
        fault.failed = f"{operation} {name.partition('/')[0]}"
        if fault.after:
            act()
        if fault.kills:
            raise Killed
        raise RemoteUnreachable(f"{self.url} does not answer: injected")


class Aged(Passing):
    """Its clock, or all that was written before now, is ``by_ns`` further."""

    def __init__(self, inner: Objects, by_ns: int) -> None:
        super().__init__(inner)
        self.by_ns = by_ns

    def now_ns(self) -> int:
        return super().now_ns() + self.by_ns


class Unconditional(Passing):
    """Does not keep one of the two conditions of a swap."""

    def __init__(self, inner: Objects, ignored: str) -> None:
        super().__init__(inner)
        self._ignored = ignored

    def swap(self, name: str, data: bytes, known: str) -> str | None:
        done = self.inner.swap(name, data, known)
        if done is None and (self._ignored == "version") == bool(known):
            found = self.inner.read_version(name, 1 << 20)
            assert found is not None
            done = self.inner.swap(name, data, found.version)
        return done
