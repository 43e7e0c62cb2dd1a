"""The thesis's figures of storage and time. Bytes unless something else is said.

Storage is figure 24(a), medians of five runs; seconds of an epoch are table 3. Other times
are in pictures only, and what the text says of them is in ``TIMES``.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DIGIT_SWAP", "EPOCHS", "PROVENANCE", "STORAGE", "TIMES"]

_B_MOBILENET = (14_345_728, 14_345_771, 14_345_771)
_B_RESNET = (241_902_565, 241_902_608, 241_902_608)

STORAGE: Mapping[tuple[str, bool, str], tuple[int, int, int]] = {
    ("mobilenetv2", False, "B"): _B_MOBILENET,
    ("mobilenetv2", True, "B"): _B_MOBILENET,
    ("mobilenetv2", False, "U"): (_B_MOBILENET[0], 14_336_054, 14_336_054),
    ("mobilenetv2", True, "U"): (_B_MOBILENET[0], 5_202_622, 5_202_622),
    ("resnet152", False, "B"): _B_RESNET,
    ("resnet152", True, "B"): _B_RESNET,
    ("resnet152", False, "U"): (_B_RESNET[0], 241_892_452, 241_892_452),
    ("resnet152", True, "U"): (_B_RESNET[0], 8_399_218, 8_399_218),
}
"""Of U1, of U2 and of each U3, by architecture, whether it is fine-tuned, and approach."""

EPOCHS: Mapping[str, tuple[float, float, float]] = {
    "mobilenetv2": (555.51, 4.65, 5.44),
    "googlenet": (689.23, 7.22, 6.44),
    "resnet18": (640.06, 6.72, 5.89),
    "resnet50": (617.75, 6.41, 5.93),
    "resnet152": (1013.78, 9.57, 9.37),
}
"""Seconds to train an epoch on ImageNet's validation images, the food and the outdoor images."""

TIMES = (
    "B recovers a ResNet-50 in about 2 s, of which the check of the environment takes over 1 s.",
    "U_P and U'_P take as long as B after about 18 models derived from one another in one "
    "setting of MobileNetV2 and 25 in the other: by then the time to recover has doubled.",
    "The time to save with U_P grows with every derived model, because the base is recovered; "
    "with U'_P it does not.",
)
"""What the text says about times; its figures have them as bars only."""

DIGIT_SWAP = (
    "The thesis's abstract says that U saves 95.6 % for a fine-tuned ResNet-152; its own bytes "
    "are 96.5 %."
)

PROVENANCE = (
    "The thesis's M_Prov saves 70.4 % against B for a ResNet-152 trained on CO-512; it stores the "
    "images of each training."
)
