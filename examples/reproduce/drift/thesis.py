"""What the thesis states, table by table, and which pipelines its rows are.

"A Versioning System for Online Learning systems", chapter 4; the figures are in ``thesis.json``. A
row's short name becomes a pipeline: ``Topk7.5p0.1m*0.5lFlors20rSkisg1.0pFeTfDifrs148f`` is Top-K
of 7.5 % with at least 0.1 % a layer and the loss curve -0.5, the 20 lowest bits reset, a save
skipped while accuracy stays within 1 %, a reset point every 148 versions. Names leave out what all
rows of a table have in common: its caption states that (section 4.6).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

__all__ = [
    *("BASELINES", "CURVES", "IMPROVEMENTS", "LEARNING", "MEASURED", "MODELS", "STATED"),
    *("Caption", "Configuration", "Figures", "Row", "Table", "read_name"),
]

_THESIS = json.loads(Path(__file__).with_name("thesis.json").read_text())
MODELS = ("conv", "lstm")
LEARNING: Mapping[str, list[float]] = _THESIS["learning"]
"""Table 4.7: seconds to learn one batch, mean and longest."""

CURVES: Mapping[str, Mapping[str, Any]] = _THESIS["curves"]
"""Tables 4.3 to 4.5: title, and cells of the settings of both networks and NLAccDiff: how far
their normalised curves are apart.
"""

IMPROVEMENTS: Mapping[str, tuple[float, float, int]] = _THESIS["improvements"]
"""Table 4.6 as printed: of each table the least and the most, and the most in per cent of the
least. The thesis swaps least and most of 4.3 and 4.5, and has other figures for 4.5 than table
4.5, whose least is .095 and whose most is .126.
"""

Figures = Mapping[str, float]
"""One row's figures for one network, of those that the table has: ``ratio`` to the first row's
bytes; ``accuracy`` in percentage points against the lossless run; ``save`` and ``load`` in seconds,
mean and ``_max``.
"""


@dataclass(frozen=True)
class Configuration:
    """A pipeline's text and the versions between two reset points."""

    pipeline: str
    interval: int


@dataclass(frozen=True)
class Caption:
    """What all rows of a table use unless their names say otherwise.

    ``delta``: XOR deltas. ``sparse``: GCXS with all options behind Top-K; what is not
    coded by it goes into ``planes``, if any. ``lsb``: bits that every row resets.
    """

    interval: int = 28
    delta: bool = True
    planes: str | None = "planes:all"
    sparse: bool = True
    lsb: int | None = None


BASELINES: Mapping[str, Configuration] = {
    "BL-NoCompression": Configuration("raw", 1),
    "BL-GeneralCompr": Configuration("zstd:1", 1),
    "BL-LosslessCompr": Configuration("xor | planes:all | zstd:1", 28),
}
"""Section 4.3.2: nothing, every version by itself, the best lossless one."""

_PLANES = {"Splas": "planes", "Splbs": "planes:all", "Splsl": "planes:concat"}
_GENERAL = {"Zst": "zstd", "Bro": "brotli", "Zli": "zlib", "Bz2": "bz2"}
_PARTS = ("values", "layers", "indices", "diff")


def read_name(name: str, caption: Caption) -> Configuration:
    """The configuration of a row; ValueError for a name that is none."""
    if name in BASELINES:
        return BASELINES[name]
    parts: dict[str, str] = {}
    if caption.lsb is not None:
        parts["lsb"] = f"lsb:{caption.lsb}"
    rest = name
    while rest:
        for pattern, read in _PATTERNS:
            if match := re.match(pattern, rest):
                parts.update(read(match))
                rest = rest[match.end() :]
                break
        else:
            raise ValueError(f"{name}: {rest} is no part of a configuration's name")
    if "topk" in parts and caption.sparse:
        parts.setdefault("planes", "sparse")
    stages = (
        parts.get("topk"),
        "xor" if caption.delta else None,
        parts.get("lsb"),
        parts.get("dsed"),
        parts.get("planes", caption.planes),
        parts.get("general", "zstd:1"),
    )
    text = " | ".join(filter(None, stages))
    return Configuration(text, int(parts.get("interval", caption.interval)))


def _share(percent: str) -> str:
    return f"{(Decimal(percent) / 100).normalize():f}"


def _topk(match: re.Match[str]) -> dict[str, str]:
    kind, share, least, curve = match.groups()
    text = f"{'topk-all' if kind == 'Topal' else 'topk'}:{_share(share)}"
    if least is not None:
        text += f",min={_share(least)}"
    if curve is not None:
        text += ",loss=" + ("linear" if curve == "T" else curve.replace("*", "-"))
    return {"topk": text}


def _sparse(match: re.Match[str]) -> dict[str, str]:
    chosen = [part for part, flag in zip(_PARTS, match.groups(), strict=True) if flag == "T"]
    return {"planes": "sparse:" + (",".join(chosen) or "none") if len(chosen) < 4 else "sparse"}


def _skip(match: re.Match[str]) -> dict[str, str]:
    bound, last = match.groups()
    return {"dsed": f"dsed:{_share(bound)}" + (",last" if last == "T" else "")}


_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], dict[str, str]]], ...] = (
    (r"(Topk|Topal)([\d.]+)p(?:([\d.]+)m)?(?:(T|\*?[\d.]+)l)?", _topk),
    (r"Flors(\d+)r(?:32r)?", lambda m: {"lsb": f"lsb:{m[1]}"}),
    (r"Remht(\d+)s(\d+)b", lambda m: {"lsb": f"lsb:{m[2]},msb={m[1]}"}),
    (r"Skisg([\d.]+)p([TF])eTf", _skip),
    (r"Gcxxs([TF])s([TF])c([TF])s([TF])d", _sparse),
    (r"(Splas|Splbs|Splsl)", lambda m: {"planes": _PLANES[m[1]]}),
    (r"(Zst|Bro|Zli|Bz2)wm(\d+)c", lambda m: {"general": f"{_GENERAL[m[1]]}:{m[2]}"}),
    (r"Lzmwm", lambda _: {"general": "lzma"}),
    (r"Difrs(\d+)f", lambda m: {"interval": m[1]}),
)


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


_OURS = {
    "4.12": ("lossless", "vsol"),
    "4.26": (
        *("lossless", "vsol"),
        *(f"vsol-{drop}-{speed}" for drop in ("0", "0.1", "1") for speed in ("fast", "slow")),
        *(f"frontier-{drop}" for drop in ("0", "0.1", "1", "1-slow")),
        *(f"frontier-{drop}-guarded" for drop in ("0", "0.1", "1")),
    ),
}


def _table(number: str, values: Mapping[str, Any]) -> Table:
    caption, columns = Caption(**values.get("caption", {})), values["columns"]
    rows = []
    for name, figures in values["rows"].items():
        assert len(figures) == len(MODELS) * len(columns), name
        stated = {
            model: dict(zip(columns, figures[position::2], strict=True))
            for position, model in enumerate(MODELS)
        }
        rows.append(Row(name, read_name(name, caption), stated))
    ours = _OURS.get(number, ())
    return Table(number, values["title"], tuple(rows), ours, 148 if ours else caption.interval)


MEASURED = {number: _table(number, values) for number, values in _THESIS["tables"].items()}
"""Tables 4.8 to 4.26 by number."""

STATED: Mapping[Configuration, Mapping[str, Figures]] = {
    row.configuration: row.stated
    for number in ("4.9", "4.12", "4.26")
    for row in MEASURED[number].rows
}
"""The thesis's figures by configuration, where its ratios are to every version by itself."""
