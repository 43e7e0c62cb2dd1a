"""Whether a store keeps conditions: tried out before it becomes a remote."""

from __future__ import annotations

import os
from contextlib import suppress

from mvc.errors import MvcError, RemoteRefused
from mvc.remote.bucket.objects import Objects


def check_conditions(objects: Objects) -> None:
    """Raises RemoteRefused unless a second creation and a stale swap of an object fail.

    Some stores take such conditions and do not keep them; two pushes at once would lose one.
    """
    name = f"probe-{os.urandom(8).hex()}"
    try:
        first = objects.swap(name, b"first", "")
        if first is None:
            raise _refused(objects, "no object can be created on condition that there is none")
        if objects.swap(name, b"second", "") is not None:
            raise _refused(objects, "an object can be created twice")
        second = objects.swap(name, b"third", first)
        if second is None:
            raise _refused(objects, "no object can be replaced on condition of its version")
        if objects.swap(name, b"fourth", first) is not None:
            raise _refused(objects, "an object is replaced although it has changed meanwhile")
        found = objects.look(name, 100)
        if found is None or found.data != b"third":
            raise _refused(objects, "what was written is not what is read")
    finally:
        with suppress(MvcError):
            objects.delete([name])


def _refused(objects: Objects, why: str) -> RemoteRefused:
    return RemoteRefused(
        f"{objects.url} cannot be a remote: {why}",
        hint="a store must keep If-Match and If-None-Match on PUT; see docs/guides/buckets.md",
    )
