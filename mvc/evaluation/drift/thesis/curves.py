"""Tables 4.3 to 4.7 of the thesis: the drift itself, and how long a batch takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CURVES", "LEARNING", "Curve"]

LEARNING = {"conv": (0.033, 0.074), "lstm": (0.094, 0.134)}
"""Table 4.7: seconds to learn one batch, mean and longest."""


@dataclass(frozen=True)
class Curve:
    """One cell of tables 4.3 to 4.5: the drift of both networks, and how far curves are apart.

    ``conv`` and ``lstm`` are the settings of the two networks.
    """

    conv: Mapping[str, str | int]
    lstm: Mapping[str, str | int]
    stated: float


def _cells(
    name: str, values: tuple[str, ...], matrix: tuple[tuple[float, ...], ...], **others: str | int
) -> tuple[Curve, ...]:
    return tuple(
        Curve({**others, name: conv}, {**others, name: lstm}, stated)
        for conv, line in zip(values, matrix, strict=True)
        for lstm, stated in zip(values, line, strict=True)
    )


_BATCHES = ((100, 0.176), (125, 0.145), (150, 0.122), (160, 0.122))

CURVES: Mapping[str, tuple[str, tuple[Curve, ...]]] = {
    "4.3": (
        "number of online batches",
        tuple(
            Curve({"batches": n, "seen": "0"}, {"batches": n, "seen": "0"}, stated)
            for n, stated in _BATCHES
        ),
    ),
    "4.4": (
        "share of the label in the offline data",
        _cells("seen", ("0.0001", "0.001"), ((0.165, 0.115), (0.239, 0.177)), batches=150),
    ),
    "4.5": (
        "share of the label in the last batch",
        tuple(
            Curve(
                {**cell.conv, "seen": "0.0001", "batches": 150},
                {**cell.lstm, "seen": "0.001", "batches": 150},
                cell.stated,
            )
            for cell in _cells(
                "peak",
                ("0.4", "0.5", "0.6"),
                ((0.107, 0.115, 0.095), (0.110, 0.115, 0.097), (0.119, 0.126, 0.102)),
            )
        ),
    ),
}
"""Tables 4.3 to 4.5: how far normalised curves are apart (NLAccDiff)."""
