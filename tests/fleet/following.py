"""A file that follows, in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mvc.serving.follower import Followed, Following
from mvc.types import PathName


def follow(
    url: PathName, target: str, *, to: Path, once: bool = False, **options: Any
) -> Followed | None:
    """``Following.once``, or ``run``."""
    with Following(url, target, to, **options) as following:
        return following.once() if once else following.run()
