"""A file that follows, in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mvc.serving.follower import Follower
from mvc.serving.sinks import ReplicaSink
from mvc.serving.sources import Followed
from mvc.types import PathName

OF_THE_SINK = set(ReplicaSink.__struct_fields__) - {"file"}


def following(url: PathName, target: str, to: Path, **options: Any) -> Follower:
    """A Follower that keeps a file; options are its own, or those of its sink."""
    sink = {name: options.pop(name) for name in OF_THE_SINK & options.keys()}
    return Follower(url, target, ReplicaSink(to, **sink), **options)


def follow(
    url: PathName, target: str, *, to: Path, once: bool = False, **options: Any
) -> Followed | None:
    """``Follower.poll``, or ``run``."""
    with following(url, target, to, **options) as follower:
        return follower.poll() if once else follower.run()
