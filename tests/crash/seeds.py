"""Where the random suites get their seed from: ``MVC_SEED`` repeats a run."""

from __future__ import annotations

import os
import random


def draw(name: str) -> random.Random:
    """A generator whose seed is printed; pytest shows it where a test fails."""
    seed = int(os.environ.get("MVC_SEED") or random.SystemRandom().getrandbits(32))
    print(f"{name}: MVC_SEED={seed} repeats this run")
    return random.Random(seed)
