"""What a user needs, and the preset that gives it (VSOL's presets by requirement, thesis §5.1).

The thesis has seven: one lossless, and for each bound on the accuracy lost (0, 0.1, 1 per
cent) one that saves fast and one that spends time on evaluation to store less. The
lossless one here is mvc's own, which stores less than the thesis's (``vsol``).
"""

from __future__ import annotations

import math
from typing import Literal

from mvc.dataclasses import dataclass
from mvc.errors import WrongUsage

__all__ = ["ACCURACY_DROPS", "SPEEDS", "Requirements"]

SPEEDS = ("fast", "slow")
ACCURACY_DROPS = (0, 0.1, 1)


@dataclass(frozen=True)
class Requirements:
    """``pipeline`` is the preset that meets these.

    ``max_recovery``: seconds that recovering any version may take, more than 0.
    ``lossy``: whether production weights may differ from training weights; if not, the
    others do not matter. ``speed``: ``slow`` evaluates every version before it is saved,
    and skips those that are not needed. ``accuracy_drop``: 0, 0.1 or 1, the per cent of
    accuracy that production weights may lose. Raises WrongUsage, naming the parameter.
    """

    max_recovery: float = 10
    lossy: bool = False
    speed: Literal["fast", "slow"] = "fast"
    accuracy_drop: float = 0

    def __post_init__(self) -> None:
        seconds = self.max_recovery
        if not _is_number(seconds) or not 0 < seconds < math.inf:
            raise WrongUsage(f"max_recovery is a number of seconds above 0, not {seconds!r}")
        if self.lossy not in (True, False):
            raise WrongUsage(f"lossy is True or False, not {self.lossy!r}")
        if self.speed not in SPEEDS:
            raise WrongUsage(f"speed is fast or slow, not {self.speed!r}")
        if not _is_number(self.accuracy_drop) or self.accuracy_drop not in ACCURACY_DROPS:
            raise WrongUsage(f"accuracy_drop is 0, 0.1 or 1 (per cent), not {self.accuracy_drop!r}")

    @property
    def pipeline(self) -> str:
        """The preset's name, for ``pipeline=`` or ``commit.pipeline``."""
        if not self.lossy:
            return "lossless"
        return f"vsol-{self.accuracy_drop:g}-{self.speed}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
