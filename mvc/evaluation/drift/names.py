"""The thesis's short names of configurations, read as our pipelines.

``Topk7.5p0.1m*0.5lFlors20rSkisg1.0pFeTfDifrs148f`` is Top-K of 7.5 % with at least 0.1 % a
layer and the loss curve -0.5, the 20 lowest bits reset, a save skipped while accuracy stays
within 1 %, a reset point every 148 versions. What a table's rows have in common its caption
says and the names leave out (section 4.6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

__all__ = ["BASELINES", "Caption", "Configuration", "read_name"]


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
_PARTS = ("values", "layers", "indices", "diff")


def read_name(name: str, caption: Caption) -> Configuration:
    """The configuration of a row; ValueError for a name that is none."""
    if name in BASELINES:
        return BASELINES[name]
    found: dict[str, str] = {}
    if caption.lsb is not None:
        found["lsb"] = f"lsb:{caption.lsb}"
    rest = name
    while rest:
        for pattern, read in _PATTERNS:
            if match := re.match(pattern, rest):
                found.update(read(match))
                rest = rest[match.end() :]
                break
        else:
            raise ValueError(f"{name}: {rest} is no part of a configuration's name")
    if "planes" in found:
        layout: str | None = found["planes"]
    elif "topk" in found and caption.sparse:
        layout = "sparse"
    else:
        layout = caption.planes
    stages = [
        found.get("topk"),
        "xor" if caption.delta else None,
        found.get("lsb"),
        found.get("dsed"),
        layout,
        found.get("general", "zstd:1"),
    ]
    text = " | ".join(stage for stage in stages if stage)
    return Configuration(text, int(found.get("interval", caption.interval)))


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


_Read = Callable[[re.Match[str]], dict[str, str]]

_PATTERNS: tuple[tuple[str, _Read], ...] = (
    (r"(Topk|Topal)([\d.]+)p(?:([\d.]+)m)?(?:(T|\*?[\d.]+)l)?", _topk),
    (r"Flors(\d+)r(?:32r)?", lambda m: {"lsb": f"lsb:{m[1]}"}),
    (r"Remht(\d+)s(\d+)b", lambda m: {"lsb": f"lsb:{m[2]},msb={m[1]}"}),
    (r"Skisg([\d.]+)p([TF])eTf", _skip),
    (r"Gcxxs([TF])s([TF])c([TF])s([TF])d", _sparse),
    (r"(Splas|Splbs|Splsl)", lambda m: {"planes": _PLANES[m[1]]}),
    (r"Zstwm(\d+)c", lambda m: {"general": f"zstd:{m[1]}"}),
    (r"Browm(\d+)c", lambda m: {"general": f"brotli:{m[1]}"}),
    (r"Zliwm(\d+)c", lambda m: {"general": f"zlib:{m[1]}"}),
    (r"Bz2wm(\d+)c", lambda m: {"general": f"bz2:{m[1]}"}),
    (r"Lzmwm", lambda _: {"general": "lzma"}),
    (r"Difrs(\d+)f", lambda m: {"interval": m[1]}),
)
