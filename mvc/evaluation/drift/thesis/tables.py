"""Tables 4.8 to 4.26 of the thesis: pipelines compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mvc.evaluation.drift.names import Caption, Configuration, read_name
from mvc.evaluation.drift.thesis import final, lossless, lossy

__all__ = ["MEASURED", "MODELS", "Figures", "Row", "Table"]

MODELS = ("conv", "lstm")
_SECONDS = ("save", "save_max", "load", "load_max")


@dataclass(frozen=True)
class Figures:
    """One row's figures for one network; None where the table has none.

    ``accuracy``: percentage points against the lossless run. The rest are a ratio to the
    first row's bytes, and seconds.
    """

    ratio: float | None = None
    accuracy: float | None = None
    save: float | None = None
    save_max: float | None = None
    load: float | None = None
    load_max: float | None = None


@dataclass(frozen=True)
class Row:
    """A configuration with the thesis's figures by network."""

    name: str
    configuration: Configuration
    stated: Mapping[str, Figures]


@dataclass(frozen=True)
class Table:
    """A table of chapter 4 that compares pipelines; the first row is what the others divide by.

    ``ours``: presets of mvc that are measured beside its rows, with ``interval``.
    """

    number: str
    title: str
    rows: tuple[Row, ...]
    ours: tuple[str, ...] = ()
    interval: int = 28


def _table(
    number: str,
    title: str,
    block: str,
    columns: tuple[str, ...],
    caption: Caption,
    ours: tuple[str, ...] = (),
) -> Table:
    rows = []
    for line in block.split("\n"):
        if not line:
            continue
        name, *cells = line.split()
        values = [float(cell) for cell in cells]
        assert len(values) == 2 * len(columns), (number, name)
        stated = {
            model: Figures(**dict(zip(columns, values[position::2], strict=True)))
            for position, model in enumerate(MODELS)
        }
        rows.append(Row(name, read_name(name, caption), stated))
    return Table(number, title, tuple(rows), ours, 148 if ours else caption.interval)


_LOSSLESS = ("ratio", *_SECONDS)
_LOSSY = ("ratio", "accuracy", *_SECONDS)
_SHORT = _LOSSY[:-1]
_PRESETS = (
    "lossless",
    "vsol",
    *(f"vsol-{drop}-{speed}" for drop in ("0", "0.1", "1") for speed in ("fast", "slow")),
    *(f"frontier-{drop}" for drop in ("0", "0.1", "1")),
)
_PLAIN = Caption(interval=1, delta=False, planes=None)

MEASURED = {
    table.number: table
    for table in (
        _table("4.8", "general compression", lossless.ROWS["4.8"], _LOSSLESS, _PLAIN),
        _table("4.9", "reset points", lossless.ROWS["4.9"], _LOSSLESS, Caption(planes=None)),
        _table("4.10", "byte planes", lossless.ROWS["4.10"], _LOSSLESS, _PLAIN),
        _table("4.11", "byte planes and compression", lossless.ROWS["4.11"], _LOSSLESS, Caption()),
        _table(
            "4.12",
            "lossless, final",
            lossless.ROWS["4.12"],
            _LOSSLESS,
            Caption(),
            ("lossless", "vsol"),
        ),
        _table("4.13", "Top-K", lossy.ROWS["4.13"], _LOSSY, Caption(sparse=False)),
        _table("4.14", "GCXS", lossy.ROWS["4.14"], _LOSSLESS, Caption()),
        _table("4.15", "GCXS, its indices", lossy.ROWS["4.15"], _LOSSLESS, Caption()),
        _table("4.16", "Top-K with a minimum per layer", lossy.ROWS["4.16"], _LOSSY, Caption()),
        _table("4.17", "Top-K over all layers", lossy.ROWS["4.17"], _LOSSY, Caption()),
        _table("4.18", "Top-K by loss", lossy.ROWS["4.18"], _LOSSY, Caption()),
        _table("4.19", "bits reset if higher ones differ", lossy.ROWS["4.19"], _LOSSY, Caption()),
        _table("4.20", "bits reset", lossy.ROWS["4.20"], _LOSSY, Caption()),
        _table("4.21", "saves skipped", lossy.ROWS["4.21"], _LOSSY, Caption()),
        _table("4.22", "Top-K and bits reset", lossy.ROWS["4.22"], _LOSSY, Caption()),
        _table("4.23", "lossy, fast", final.ROWS["4.23"], _SHORT, Caption()),
        _table("4.24", "lossy, slow", final.ROWS["4.24"], _SHORT, Caption()),
        _table(
            "4.25", "lossy with slower compression", final.ROWS["4.25"], _LOSSLESS, Caption(lsb=20)
        ),
        _table("4.26", "lossy, final", final.ROWS["4.26"], _SHORT, Caption(), _PRESETS),
    )
}
"""Tables 4.8 to 4.26 by number."""
