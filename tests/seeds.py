"""Where the random suites get their seed from: ``MVC_SEED`` repeats a run."""

from __future__ import annotations

import os
import random

from tests.variables import variable

__all__ = ["draw"]


def draw(name: str) -> random.Random:
    """A generator whose seed is printed; pytest shows it where a test fails.

    Under one ``MVC_SEED`` every test, every parameter (round) of it and every ``name``
    has numbers of its own, and a run of the same test has the same ones again.
    """
    seed = variable("MVC_SEED") or str(random.SystemRandom().getrandbits(32))
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]
    print(f"{name}: MVC_SEED={seed} repeats this run")
    return random.Random(f"{seed}:{test}:{name}")
