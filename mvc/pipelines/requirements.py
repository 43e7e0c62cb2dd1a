"""Chooses a preset (a pipeline with a name) for a user's requirements.

A lossy preset stores production weights, which may be less accurate than the training weights. The
user gives a bound for this loss of accuracy. ``python examples/reproduce drift bounds`` measured
the losses of presets in trainings on images and texts.

Without ``lossy``, mvc chooses ``lossless``. With ``lossy``:

- ``speed="fast"``: mvc chooses ``frontier-0``, the smallest preset whose loss was not significantly
  above the bound in 95 % of these trainings.
- ``speed="slow"``: mvc chooses a preset with a guard. The guard compares accuracies on the user's
  data. If a loss above the bound is significant, the guard stores weights more exactly.

The choice of a preset for requirements is from the VSOL thesis (section 5.1).
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from mvc.errors import InvalidPipeline, WrongUsage

SPEEDS = ("fast", "slow")
ACCURACY_DROPS = (0, 0.1, 1)

_LOST: dict[tuple[str, float], tuple[int, int, float, float, float]] = {
    ("frontier-0", 0): (36, 0, 0.12, 0.24, 1.71),
    ("frontier-0", 0.1): (36, 0, 0.12, 0.24, 1.71),
    ("frontier-0", 1): (36, 0, 0.12, 0.24, 1.71),
    ("frontier-0-guarded", 0): (28, 0, 0.12, 0.24, 1.71),
    ("frontier-0.1-guarded", 0.1): (28, 3, 0.19, 0.96, 3.56),
    ("frontier-1-guarded", 1): (28, 4, 0.35, 2.37, 3.98),
}
"""Maps a preset and a bound to measurements.

The first number is the number of trainings. The second number is the number of trainings that
exceeded the bound by more than chance. The other numbers are the largest losses in any training, in
percentage points: on the next batch, on the last batch, and for the worst label.
"""


class Requirements(Struct, frozen=True):
    """A user's requirements, as an alternative to a pipeline. Raises WrongUsage for a wrong value.

    - ``max_recovery``: the maximum number of seconds to recover a version, more than 0. A commit
      uses this value in place of the setting ``store.max_recovery``.
    - ``lossy``: whether production weights may differ from training weights.
    - ``speed``: with ``slow`` and ``lossy``, mvc compares the accuracy of every version with the
      accuracy of the training weights. This needs ``evaluate`` and labelled data.
    - ``accuracy_drop``: how much accuracy production weights may lose, in per cent: 0, 0.1 or 1.
      Without ``lossy`` it must be 0.
    """

    max_recovery: float = 10
    lossy: bool = False
    speed: Literal["fast", "slow"] = "fast"
    accuracy_drop: float = 0

    def __post_init__(self) -> None:
        seconds = self.max_recovery
        if not _is_number(seconds) or not 0 < seconds < math.inf:
            raise WrongUsage(f"max_recovery must be a number of seconds above 0, not {seconds!r}")
        if self.lossy not in (True, False):
            raise WrongUsage(f"lossy must be True or False, not {self.lossy!r}")
        if self.speed not in SPEEDS:
            raise WrongUsage(f"speed must be fast or slow, not {self.speed!r}")
        if not _is_number(self.accuracy_drop) or self.accuracy_drop not in ACCURACY_DROPS:
            raise WrongUsage(
                f"accuracy_drop must be 0, 0.1 or 1 (per cent), not {self.accuracy_drop!r}"
            )
        if self.accuracy_drop and not self.lossy:
            raise WrongUsage(
                f"accuracy_drop is {self.accuracy_drop:g}, but without lossy no accuracy is lost",
                hint="set lossy, too, or leave out accuracy_drop",
            )

    @property
    def pipeline(self) -> str:
        """The preset's name, for ``pipeline=`` or ``commit.pipeline``."""
        if not self.lossy:
            return "lossless"
        return "frontier-0" if self.speed == "fast" else f"frontier-{self.accuracy_drop:g}-guarded"

    @property
    def measured(self) -> str | None:
        """A sentence about the measured losses of the preset; None if the preset loses nothing."""
        if not self.lossy:
            return None
        trainings, exceeded, *most = _LOST[self.pipeline, self.accuracy_drop]
        return (
            f"in {exceeded} of mvc's {trainings} trainings on images and texts the loss exceeded "
            "the bound by more than chance; at most {:.2f} points on the next batch, "
            "{:.2f} on the last batch, {:.2f} for the worst label".format(*most)
        )


def pipeline_and_bound(pipeline: object) -> tuple[str | None, float | None]:
    """Returns the pipeline and the maximum recovery time in seconds. None: the setting applies.

    ``pipeline``: a text, Requirements, or None for the settings. Raises WrongUsage for any other
    type, and InvalidPipeline for an empty text.
    """
    if pipeline == "":
        raise InvalidPipeline(
            "the pipeline is empty",
            hint="leave out the pipeline to use the setting commit.pipeline",
        )
    if isinstance(pipeline, Requirements):
        return pipeline.pipeline, pipeline.max_recovery
    if pipeline is None or isinstance(pipeline, str):
        return pipeline, None
    raise WrongUsage(
        f"pipeline is of type {type(pipeline).__name__}: it must be text or mvc.Requirements"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
