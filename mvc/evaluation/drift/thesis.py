"""What the thesis states, table by table (figures only), and which pipelines its rows are.

"A Versioning System for Online Learning systems", chapter 4. A row's short name becomes a
pipeline: ``Topk7.5p0.1m*0.5lFlors20rSkisg1.0pFeTfDifrs148f`` is Top-K of 7.5 % with at least
0.1 % a layer and the loss curve -0.5, the 20 lowest bits reset, a save skipped while accuracy
stays within 1 %, a reset point every 148 versions. Names leave out what all rows of a table
have in common: its caption states that (section 4.6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any

__all__ = [
    *("BASELINES", "CURVES", "IMPROVEMENTS", "LEARNING", "MEASURED", "MODELS", "STATED"),
    *("Caption", "Configuration", "Curve", "Figures", "Row", "Table", "read_name"),
]

MODELS = ("conv", "lstm")
LEARNING = {"conv": (0.033, 0.074), "lstm": (0.094, 0.134)}
"""Table 4.7: seconds to learn one batch, mean and longest."""

Setting = Mapping[str, Any]


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
    if "topk" in found and caption.sparse:
        found.setdefault("planes", "sparse")
    stages = (
        found.get("topk"),
        "xor" if caption.delta else None,
        found.get("lsb"),
        found.get("dsed"),
        found.get("planes", caption.planes),
        found.get("general", "zstd:1"),
    )
    text = " | ".join(filter(None, stages))
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
class Curve:
    """One cell of tables 4.3 to 4.5: the drift of both networks, and how far curves are apart.

    ``conv`` and ``lstm`` are the settings of the two networks.
    """

    conv: Setting
    lstm: Setting
    stated: float


def _curves(
    settings: Iterable[tuple[Setting, Setting]], stated: tuple[float, ...]
) -> tuple[Curve, ...]:
    return tuple(Curve(*both, figure) for both, figure in zip(settings, stated, strict=True))


def _peaks(seen: str) -> list[Setting]:
    return [{"peak": peak, "seen": seen, "batches": 150} for peak in ("0.4", "0.5", "0.6")]


_SEEN: list[Setting] = [{"batches": 150, "seen": seen} for seen in ("0.0001", "0.001")]

CURVES: Mapping[str, tuple[str, tuple[Curve, ...]]] = {
    "4.3": (
        "number of online batches",
        _curves(
            [(one, one) for one in ({"batches": n, "seen": "0"} for n in (100, 125, 150, 160))],
            (0.176, 0.145, 0.122, 0.122),
        ),
    ),
    "4.4": (
        "share of the label in the offline data",
        _curves(product(_SEEN, _SEEN), (0.165, 0.115, 0.239, 0.177)),
    ),
    "4.5": (
        "share of the label in the last batch",
        _curves(
            product(_peaks("0.0001"), _peaks("0.001")),
            (0.107, 0.115, 0.095, 0.110, 0.115, 0.097, 0.119, 0.126, 0.102),
        ),
    ),
}
"""Tables 4.3 to 4.5: how far normalised curves are apart (NLAccDiff)."""

IMPROVEMENTS: Mapping[str, tuple[float, float, int]] = {
    "4.4": (0.115, 0.239, 208),
    "4.3": (0.122, 0.176, 144),
    "4.5": (0.102, 0.119, 117),
}
"""Table 4.6 as printed: of each table the least and the most, and the most in per cent of the
least. The thesis swaps least and most of 4.3 and 4.5, and has other figures for 4.5 than table
4.5, whose least is .095 and whose most is .126.
"""


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


_ROWS = """
# 4.8
BL-NoCompression 1.000 1.000 .004 .007 .021 .017 .002 .004 .003 .011
Browm11c 1.093 1.091 7.209 16.362 9.109 20.165 .038 .081 .048 .101
Browm10c 1.093 1.091 3.731 8.614 4.675 10.960 .040 .080 .058 .094
Lzmwm 1.086 1.085 .753 1.906 .841 2.062 .160 .332 .187 .366
Zstwm5c 1.080 1.082 .033 .058 .050 .118 .012 .023 .023 .037
Zstwm15c 1.080 1.082 .110 .197 .163 .235 .012 .021 .027 .038
Zstwm10c 1.080 1.082 .115 .212 .164 .245 .011 .022 .020 .042
Zstwm1c 1.080 1.081 .017 .024 .034 .051 .014 .023 .039 .048
Browm9c 1.080 1.081 .130 .306 .163 .415 .026 .052 .036 .063
Browm1c 1.080 1.081 .019 .036 .030 .049 .027 .052 .040 .061
Zstwm22c 1.079 1.081 .560 1.075 .976 1.175 .012 .021 .026 .032
Zliwm9c 1.078 1.079 .142 .292 .166 .337 .017 .038 .028 .060
Zliwm1c 1.075 1.076 .128 .264 .146 .298 .018 .039 .030 .063
Bz2wm9c 1.053 1.053 .360 .734 .430 .795 .191 .374 .242 .426
Bz2wm1c 1.037 1.037 .344 .718 .386 .771 .159 .337 .191 .395
# 4.9
BL-GeneralCompr 1.000 1.000 .014 .023 .031 .041 .013 .022 .031 .052
Difrs148f 3.824 1.340 .019 .031 .040 .060 .446 1.089 .948 2.637
Difrs28f 3.487 1.293 .017 .027 .029 .053 .085 .214 .167 .432
# 4.10
BL-GeneralCompr 1.000 1.000 .012 .025 .032 .048 .012 .024 .033 .045
Splsl 1.095 1.097 .017 .029 .033 .048 .023 .051 .038 .068
Splbs 1.095 1.097 .016 .027 .032 .048 .021 .047 .034 .076
Splas 1.084 1.077 .016 .028 .029 .040 .009 .018 .019 .032
# 4.11
BL-GeneralCompr 1.000 1.000 .017 .024 .039 .043 .014 .024 .032 .043
SplbsBrowm10c 3.918 1.554 1.806 6.087 3.933 11.729 .339 .952 .697 1.926
SplasBrowm10c 3.912 1.555 1.830 6.027 3.989 12.043 .234 .778 .480 1.582
SplbsLzmwm 3.896 1.535 .633 1.995 1.538 4.453 .545 1.283 1.142 2.989
SplasLzmwm 3.885 1.532 .629 1.986 1.533 4.254 .446 1.205 .961 2.733
SplbsZstwm1c 3.702 1.508 .030 .048 .062 .089 .258 .475 .524 .942
SplbsZstwm15c 3.680 1.504 .224 .658 .481 1.333 .257 .713 .518 1.465
SplasZstwm1c 3.668 1.495 .070 .050 .129 .093 .371 .299 .729 .612
SplasZstwm15c 3.646 1.497 .225 .649 .600 1.402 .154 .544 .326 1.103
SplbsBrowm1c 3.609 1.494 .033 .099 .066 .161 .339 .861 .674 1.763
SplasBrowm1c 3.588 1.484 .031 .100 .065 .180 .234 .729 .475 1.457
SplbsZliwm9c 3.571 1.497 .784 1.735 1.638 3.687 .322 .830 .648 1.660
SplasZliwm9c 3.550 1.490 .781 1.659 1.596 3.465 .216 .679 .435 1.380
SplbsBz2wm9c 3.466 1.470 .148 .603 .513 1.343 .803 2.651 1.552 5.279
SplasBz2wm9c 3.450 1.464 .147 .603 .507 1.363 .706 2.480 1.362 4.752
# 4.12
BL-GeneralCompr 1.000 1.000 .022 .025 .040 .048 .016 .024 .039 .045
SplasLzmwmDifrs148f 4.200 1.591 .582 1.907 1.591 4.046 1.985 6.065 4.089 12.529
SplbsZstwm1cDifrs148f 3.962 1.565 .028 .050 .059 .086 1.014 2.306 2.040 4.536
SplasLzmwmDifrs28f 3.796 1.531 .617 1.990 1.515 4.238 .404 1.198 .866 2.732
SplbsZstwm1cDifrs28f 3.631 1.507 .027 .056 .053 .091 .221 .496 .601 .992
# 4.13
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434 .530 .875
Topk25.0p 1.147 2.001 .210 .010 .070 .287 .117 .373 .306 1.175 .614 2.413
Topk15.0p 1.355 2.658 .220 -.010 .066 .274 .115 .360 .302 1.169 .603 2.377
Topk10.0p 1.626 3.348 .170 -.050 .063 .263 .096 .349 .296 1.156 .607 2.349
Topk7.5p 1.855 3.949 .160 -.100 .062 .258 .101 .341 .299 1.157 .612 2.344
Topk5.0p 2.241 4.976 .060 -.250 .059 .252 .093 .334 .289 1.137 .582 2.252
Topk2.5p 3.111 7.218 -.350 -.710 .054 .240 .090 .341 .283 1.131 .562 2.315
Topk1.75p 3.627 8.545 -.670 -1.170 .053 .235 .086 .311 .280 1.111 .577 2.286
Topk1.0p 4.486 10.698 -1.420 -2.180 .051 .230 .086 .311 .275 1.117 .541 2.278
Topk0.5p 5.449 13.096 -2.990 -4.700 .049 .226 .089 .305 .268 1.083 .548 2.196
Topk0.25p 6.155 14.910 -5.650 -8.830 .049 .220 .084 .299 .264 1.088 .536 2.173
Topk0.1p 6.725 16.429 -11.900 -16.010 .047 .215 .089 .294 .262 1.064 .526 2.142
Topk0.01p 7.220 17.740 -27.890 -24.380 .047 .215 .082 .334 .265 1.059 .566 2.123
# 4.14
BL-LosslessCompr 1.000 1.000 .023 .037 .048 .069 .207 .437 .427 .932
Topk15.0pGcxxsTsTcFsFd 1.418 3.377 .039 .071 .069 .115 .087 .173 .171 .338
Topk15.0pSplbs 1.326 2.664 .040 .249 .063 .320 .211 1.092 .453 2.230
Topk15.0pGcxxsTsFcFsFd 1.326 3.085 .052 .106 .081 .143 .190 .376 .436 .818
Topk15.0pGcxxsFsTcFsFd 1.288 3.020 .040 .078 .075 .103 .098 .205 .208 1.071
Topk15.0pGcxxsFsFcFsFd 1.204 2.806 .053 .114 .095 .146 .186 .360 .373 .770
Topk1.75pGcxxsTsTcFsFd 4.432 11.241 .028 .050 .060 .099 .068 .123 .134 .235
Topk1.75pGcxxsTsFcFsFd 4.279 10.844 .029 .054 .053 .090 .096 .166 .186 .348
Topk1.75pGcxxsFsTcFsFd 4.144 10.456 .027 .049 .047 .076 .069 .129 .138 .263
Topk1.75pGcxxsFsFcFsFd 4.031 10.054 .028 .054 .053 .095 .094 .174 .209 .335
Topk1.75pSplbs 3.511 8.562 .031 .213 .064 .282 .198 1.041 .490 2.107
# 4.15
BL-LosslessCompr 1.000 1.000 .023 .037 .048 .069 .207 .437 .427 .932
Topk15.0pGcxxsTsTcTsTd 1.668 3.853 .039 .080 .060 .124 .092 .186 .183 .361
Topk15.0pGcxxsTsTcFsTd 1.621 3.779 .041 .080 .062 .120 .091 .203 .192 .411
Topk15.0pGcxxsTsTcTsFd 1.540 3.452 .038 .078 .068 .120 .088 .182 .169 .383
Topk15.0pGcxxsTsTcFsFd 1.418 3.377 .039 .071 .069 .115 .087 .173 .171 .338
Topk1.75pGcxxsTsTcTsTd 4.621 11.659 .025 .053 .043 .162 .071 .136 .143 .259
Topk1.75pGcxxsTsTcFsTd 4.553 11.560 .027 .056 .046 .090 .071 .147 .150 .285
Topk1.75pGcxxsTsTcTsFd 4.484 11.235 .027 .053 .054 .091 .069 .142 .133 .276
Topk1.75pGcxxsTsTcFsFd 4.432 11.241 .028 .050 .060 .099 .068 .123 .134 .235
# 4.16
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .062 .079 .258 .434 .524 .875
Topk15.0p0.1m 1.697 3.840 .240 .050 .060 .187 .094 .241 .153 .489 .321 1.003
Topk15.0p0.01m 1.709 3.856 .280 .030 .060 .184 .103 .251 .154 .488 .317 1.001
Topk15.0p 1.711 3.860 .260 .010 .059 .185 .091 .245 .151 .490 .312 1.017
Topk7.5p0.1m 2.542 5.991 .240 .000 .056 .174 .090 .238 .145 .478 .303 .974
Topk7.5p0.01m 2.576 6.039 .230 -.030 .056 .174 .085 .223 .144 .475 .301 .976
Topk7.5p 2.582 6.054 .220 -.080 .055 .170 .088 .223 .141 .468 .289 .942
Topk5.0p0.1m 3.077 7.445 .180 -.100 .051 .171 .080 .229 .132 .493 .275 1.039
Topk5.0p0.01m 3.128 7.540 .150 -.110 .052 .170 .084 .225 .134 .495 .282 1.042
Topk5.0p 3.137 7.567 .120 -.220 .052 .169 .084 .225 .131 .481 .270 .971
Topk2.5p0.1m 4.069 10.024 .020 -.370 .044 .158 .075 .216 .124 .465 .265 .960
Topk2.5p0.01m 4.201 10.270 -.180 -.420 .045 .159 .080 .216 .128 .479 .269 .987
Topk1.75p0.1m 4.540 11.140 -.080 -.590 .041 .148 .073 .199 .111 .460 .236 .946
Topk1.75p0.01m 4.750 11.589 -.410 -.690 .040 .148 .068 .200 .109 .460 .226 .950
Topk2.5p 4.220 10.329 -.320 -.710 .042 .155 .079 .209 .114 .456 .236 .929
Topk1.75p 4.782 11.674 -.610 -1.120 .039 .145 .070 .214 .109 .458 .234 .936
# 4.17
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434 .530 .875
Topk7.5p0.1m 2.542 5.991 .200 .000 .056 .173 .090 .234 .145 .477 .301 .963
Topal7.5p0.1m 2.547 5.951 .160 .020 .060 .230 .095 .292 .124 .769 .304 1.572
Topal5.0p0.1m 3.096 7.385 .170 -.100 .040 .076 .072 .145 .068 .148 .141 .296
Topk5.0p0.1m 3.078 7.445 .150 -.100 .051 .171 .080 .228 .133 .493 .277 1.044
Topal1.75p0.1m 4.669 10.665 -.070 -.500 .036 .067 .064 .119 .065 .139 .138 .271
Topk1.75p0.1m 4.541 11.140 -.120 -.590 .041 .148 .070 .199 .112 .463 .236 .953
# 4.18
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434 .530 .875
Topk7.5p0.1m 2.542 5.991 .200 .000 .056 .173 .090 .234 .145 .477 .301 .963
Topk7.5p0.1m*0.5l 3.727 6.838 .020 -.010 .035 .106 .059 .151 .090 .285 .193 .591
Topk7.5p0.1mTl 4.197 7.481 -.050 -.030 .032 .099 .062 .157 .086 .269 .183 .547
Topk7.5p0.1m0.1l 4.423 7.874 -.100 -.060 .032 .099 .061 .141 .085 .272 .181 .562
Topk7.5p0.1m2l 5.134 9.481 -.260 -.150 .032 .095 .065 .135 .084 .266 .182 .532
Topk5.0p0.1m 3.078 7.445 .150 -.100 .051 .171 .080 .228 .133 .493 .277 1.044
Topk5.0p0.1m*0.5l 4.271 8.343 -.100 -.110 .036 .097 .062 .135 .093 .265 .197 .536
Topk5.0p0.1mTl 4.687 8.994 -.170 -.160 .033 .100 .063 .143 .090 .272 .191 .563
Topk5.0p0.1m0.1l 4.883 9.369 -.210 -.170 .034 .099 .062 .147 .091 .274 .189 .564
Topk5.0p0.1m2l 5.451 10.761 -.380 -.350 .033 .095 .064 .134 .089 .272 .187 .564
Topk10.0p0.1m*0.5l 3.338 5.829 .210 -.020 .035 .066 .081 .095 .092 .151 .233 .303
Topk10.0p0.1m 2.125 5.047 .170 -.020 .038 .067 .068 .102 .087 .155 .181 .312
Topk10.0p0.1mTl 3.839 6.431 .130 -.030 .032 .062 .062 .102 .084 .142 .200 .289
Topk10.0p0.1m0.1l 4.080 6.815 .130 -.040 .034 .061 .079 .095 .088 .141 .201 .299
Topk10.0p0.1m2l 4.876 8.450 -.090 -.100 .031 .057 .073 .095 .085 .132 .201 .265
# 4.19
BL-LosslessCompr 1.000 1.000 .000 .000 .025 .037 .059 .081 .222 .434 .440 .886
Remht15s8b 1.222 1.559 .050 -.010 .043 .135 .067 .198 .127 .375 .262 .765
Remht19s8b 1.545 1.622 .040 .010 .041 .089 .073 .277 .118 .241 .313 .587
Remht23s8b 1.589 1.630 .010 -.010 .043 .108 .082 .159 .120 .333 .278 .725
Remht11s8b 1.161 1.404 .000 -.010 .039 .084 .151 .126 .124 .262 .331 .927
Remht11s16b 2.641 3.312 .030 .000 .042 .085 .083 .125 .106 .249 .217 .508
Remht23s16b 3.261 4.376 .020 -.010 .042 .112 .133 .161 .105 .298 .282 .595
Remht3s16b 1.035 1.029 .010 -.010 .039 .073 .077 .124 .127 .297 .333 .688
Remht7s16b 1.190 1.361 .000 .000 .041 .137 .064 .198 .127 .403 .260 .817
# 4.20
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434 .530 .875
Flors20r32r 4.667 8.310 .020 .020 .046 .048 .085 .085 .255 .392 .532 .787
Flors16r32r 3.226 4.425 .010 -.030 .046 .053 .084 .083 .254 .402 .517 .825
Flors21r32r 5.133 9.807 -.040 .000 .034 .079 .058 .123 .221 .498 .439 .995
Flors22r32r 5.620 11.413 -.090 -.010 .034 .077 .062 .121 .221 .496 .437 .985
Flors23r32r 6.047 12.894 -.320 -.080 .038 .046 .073 .080 .229 .385 .465 .860
# 4.21
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434 .530 .875
Skisg0pFeTf 1.508 1.136 .220 .000 .180 .224 .284 1.362 .327 .488 .779 1.075
Skisg0pTeTf 1.524 1.158 .200 .000 .172 .234 .263 1.364 .334 .505 .835 1.109
Skisg1.0pTeTf 1.629 2.778 .210 -.150 .173 .242 .259 1.406 .340 .588 .866 1.443
Skisg1.0pFeTf 4.383 2.013 -.010 -.050 .323 .273 .771 1.392 .438 .637 .819 1.496
# 4.22
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434 .530 .875
Topk7.5p0.1m*0.5lFlors18r32r 5.685 11.515 .070 -.080 .037 .098 .067 .131 .068 .177 .148 .344
Topk7.5p0.1m*0.5l 3.727 6.838 .020 -.010 .035 .106 .059 .151 .090 .285 .193 .591
Topk7.5p0.1mTlFlors18r32r 5.864 11.928 .000 -.080 .036 .098 .059 .135 .068 .176 .140 .346
Topk7.5p0.1mTl 4.197 7.481 -.050 -.030 .032 .099 .062 .157 .086 .269 .183 .547
Topk5.0p0.1m2lFlors18r32r 6.421 14.031 -.300 -.400 .035 .090 .062 .137 .067 .172 .139 .336
Topk7.5p0.1m*0.5lFlors20r32r 6.669 14.384 -.360 -.240 .060 .254 .092 .310 .112 .492 .236 1.015
Topk5.0p0.1m2l 5.451 10.761 -.380 -.350 .033 .095 .064 .134 .089 .272 .187 .564
Topk7.5p0.1mTlFlors20r32r 6.745 14.568 -.520 -.270 .065 .263 .097 .361 .117 .482 .258 1.012
Topk5.0p0.1m2lFlors20r32r 6.935 15.422 -1.050 -.720 .058 .259 .088 .331 .106 .494 .225 1.020
# 4.23
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434
Topk7.5p0.1m*0.5lFlors18r32r 5.685 11.515 .070 -.080 .037 .098 .067 .131 .068 .177
Topk7.5p0.1m*0.5l 3.727 6.838 .020 -.010 .035 .106 .059 .151 .090 .285
Flors20r32rSplbs 4.667 8.310 .020 .020 .046 .048 .085 .085 .255 .392
Topk7.5p0.1mTlFlors18r32r 5.864 11.928 .000 -.080 .036 .098 .059 .135 .068 .176
Topk7.5p0.1mTl 4.197 7.481 -.050 -.030 .032 .099 .062 .157 .086 .269
Topk5.0p0.1m2lFlors18r32r 6.421 14.031 -.300 -.400 .035 .090 .062 .137 .067 .172
Topk7.5p0.1m*0.5lFlors20r32r 6.669 14.384 -.360 -.240 .060 .254 .092 .310 .112 .492
Topk5.0p0.1m2l 5.451 10.761 -.380 -.350 .033 .095 .064 .134 .089 .272
Topk7.5p0.1mTlFlors20r32r 6.745 14.568 -.520 -.270 .065 .263 .097 .361 .117 .482
Topk5.0p0.1m2lFlors20r32r 6.935 15.422 -1.050 -.720 .058 .259 .088 .331 .106 .494
# 4.24
BL-LosslessCompr 1.000 1.000 .000 .000 .030 .037 .063 .079 .262 .434
Flors20r32rSkisg0pFeTfSplbs 7.706 9.425 .290 .030 .193 .424 .277 1.775 .297 .959
Topk7.5p0.1m*0.5lSkisg0pFeTf 5.491 7.482 .170 -.050 .189 .383 .271 1.669 .141 .530
Topk7.5p0.1m*0.5lFlors18r32rSkisg0pFeTf 9.870 13.143 .080 -.080 .167 .321 .264 1.517 .082 .247
Topk7.5p0.1mTlSkisg0pFeTf 6.378 8.226 .050 -.080 .194 .398 .276 1.746 .152 .508
Topk7.5p0.1mTlFlors18r32rSkisg0pFeTf 10.327 13.694 .010 -.110 .171 .326 .241 1.493 .085 .254
Flors20r32rSkisg1.0pFeTfSplbs 19.801 14.435 -.080 -.050 .295 .453 .680 1.781 .368 .903
Topk7.5p0.1m*0.5lSkisg1.0pFeTf 12.984 10.362 -.240 -.100 .310 .423 .913 1.673 .223 .653
Topk7.5p0.1m*0.5lFlors18r32rSkisg1.0pFeTf 27.239 21.080 -.280 -.110 .256 .355 .575 1.463 .156 .290
Topk5.0p0.1m2lSkisg0pFeTf 9.180 13.335 -.300 -.440 .189 .395 .274 1.730 .123 .617
Topk5.0p0.1m2lFlors18r32rSkisg0pFeTf 11.797 19.407 -.310 -.420 .164 .331 .369 1.528 .072 .285
Topk7.5p0.1mTlSkisg1.0pFeTf 14.770 11.696 -.330 -.180 .331 .443 .952 1.763 .278 .586
Topk7.5p0.1m*0.5lFlors20r32rSkisg0pFeTf 13.745 18.328 -.400 -.260 .200 .459 .318 1.783 .122 .514
Topk7.5p0.1mTlFlors18r32rSkisg1.0pFeTf 28.576 23.496 -.460 -.130 .247 .367 .503 1.498 .138 .320
Topk7.5p0.1mTlFlors20r32rSkisg0pFeTf 14.013 18.580 -.560 -.300 .208 .475 .297 1.821 .123 .594
Topk5.0p0.1m2lSkisg1.0pFeTf 21.994 20.171 -.740 -.550 .319 .455 .729 1.715 .231 .530
Topk5.0p0.1m2lFlors18r32rSkisg1.0pFeTf 31.860 32.906 -.760 -.570 .233 .380 .477 1.511 .138 .263
Topk7.5p0.1m*0.5lFlors20r32rSkisg1.0pFeTf 34.729 34.610 -.850 -.360 .331 .508 .709 2.077 .217 .583
Topk7.5p0.1mTlFlors20r32rSkisg1.0pFeTf 35.867 35.425 -1.120 -.410 .354 .537 .743 1.822 .213 .542
Topk5.0p0.1m2lFlors20r32rSkisg0pFeTf 15.770 22.065 -1.120 -.760 .204 .495 .425 1.825 .121 .534
Topk5.0p0.1m2lFlors20r32rSkisg1.0pFeTf 38.085 39.735 -1.650 -.930 .317 .559 .619 1.840 .157 .441
# 4.25
BL-LosslessCompr 1.000 1.000 .030 .037 .063 .079 .262 .434 .530 .875
Topk7.5p0.1m*0.5lSkisg1.0pFeTfZstwm1c 34.729 34.610 .331 .508 .709 2.077 .217 .583 .331 1.307
Topk7.5p0.1m*0.5lSkisg1.0pFeTfLzmwm 33.322 35.244 .248 .373 .886 2.575 .151 .277 .234 .554
Skisg1.0pFeTfSplbsLzmwm 20.524 16.419 .281 .892 1.193 3.739 .508 .660 .825 1.437
Skisg1.0pFeTfSplbsZstwm1c 19.830 14.435 .308 .453 .643 1.781 .377 .903 .625 1.988
Topk7.5p0.1m*0.5lLzmwm 6.771 14.665 .081 .214 1.022 2.317 .086 .198 .154 .373
Topk7.5p0.1m*0.5lZstwm1c 6.669 14.384 .060 .254 .092 .310 .112 .492 .236 1.015
SplbsLzmwm 5.010 9.569 .301 1.220 1.171 3.398 .275 .607 .548 1.173
SplbsZstwm1c 4.667 8.310 .046 .048 .085 .085 .255 .392 .532 .787
# 4.26
BL-GeneralCompr 1.000 1.000 .000 .000 .012 .024 .035 .043 .011 .024
Flors20rSkisg0pFeTfDifrs28f 28.523 14.208 .190 .010 .193 .424 .277 1.775 .297 .959
Flors20rSkisg0pFeTfDifrs148f 46.197 21.856 .130 -.030 .159 .274 .483 1.435 1.081 4.323
Flors20rDifrs148f 29.944 18.017 -.020 -.030 .028 .085 .046 .120 .931 2.476
Flors20rDifrs28f 17.275 12.528 -.080 .000 .046 .048 .085 .085 .255 .392
Topk7.5p0.1mTlFlors18rDifrs148f 46.405 32.109 -.080 -.120 .037 .123 .058 .152 .311 1.103
Topk7.5p0.1mTlFlors18rDifrs28f 21.704 17.981 -.100 -.100 .036 .098 .059 .135 .068 .176
Flors20rSkisg1.0pFeTfDifrs28f 73.293 21.762 -.180 -.070 .295 .453 .680 1.781 .368 .903
Flors20rSkisg1.0pFeTfDifrs148f 82.877 29.074 -.260 -.100 .236 .297 .473 1.387 .458 2.516
Topk7.5p0.1m*0.5lFlors20rDifrs28f 24.685 21.684 -.460 -.260 .060 .254 .092 .310 .112 .492
Topk7.5p0.1m*0.5lFlors20rDifrs148f 62.550 46.195 -.490 -.330 .039 .094 .066 .140 .326 .774
Topk7.5p0.1m*0.5lFlors20rSkisg1.0pFeTfDifrs28f \
128.547 52.176 -.940 -.380 .331 .508 .709 2.077 .217 .583
Topk7.5p0.1m*0.5lFlors20rSkisg1.0pFeTfDifrs148f \
129.692 76.917 -.980 -.400 .243 .334 .426 1.466 .121 .579
"""
"""A header for each table, then its rows: the name, and every column for conv net and LSTM.

Ratios are to the first row, seconds of the thesis's own machine, accuracies in percentage points
against lossless.
"""

_LOSSLESS = ("ratio", "save", "save_max", "load", "load_max")
_LOSSY = ("ratio", "accuracy", *_LOSSLESS[1:])
_SHORT = _LOSSY[:-1]
_PLAIN = Caption(interval=1, delta=False, planes=None)

_TABLES: Mapping[str, tuple[str, tuple[str, ...], Caption]] = {
    "4.8": ("general compression", _LOSSLESS, _PLAIN),
    "4.9": ("reset points", _LOSSLESS, Caption(planes=None)),
    "4.10": ("byte planes", _LOSSLESS, _PLAIN),
    "4.11": ("byte planes and compression", _LOSSLESS, Caption()),
    "4.12": ("lossless, final", _LOSSLESS, Caption()),
    "4.13": ("Top-K", _LOSSY, Caption(sparse=False)),
    "4.14": ("GCXS", _LOSSLESS, Caption()),
    "4.15": ("GCXS, its indices", _LOSSLESS, Caption()),
    "4.16": ("Top-K with a minimum per layer", _LOSSY, Caption()),
    "4.17": ("Top-K over all layers", _LOSSY, Caption()),
    "4.18": ("Top-K by loss", _LOSSY, Caption()),
    "4.19": ("bits reset if higher ones differ", _LOSSY, Caption()),
    "4.20": ("bits reset", _LOSSY, Caption()),
    "4.21": ("saves skipped", _LOSSY, Caption()),
    "4.22": ("Top-K and bits reset", _LOSSY, Caption()),
    "4.23": ("lossy, fast", _SHORT, Caption()),
    "4.24": ("lossy, slow", _SHORT, Caption()),
    "4.25": ("lossy with slower compression", _LOSSLESS, Caption(lsb=20)),
    "4.26": ("lossy, final", _SHORT, Caption()),
}
_OURS = {
    "4.12": ("lossless", "vsol"),
    "4.26": (
        *("lossless", "vsol"),
        *(f"vsol-{drop}-{speed}" for drop in ("0", "0.1", "1") for speed in ("fast", "slow")),
        *(f"frontier-{drop}" for drop in ("0", "0.1", "1", "1-slow")),
    ),
}


def _row(line: str, columns: tuple[str, ...], caption: Caption) -> Row:
    name, *cells = line.split()
    values = [float(cell) for cell in cells]
    assert len(values) == 2 * len(columns), name
    stated = {
        model: Figures(**dict(zip(columns, values[position::2], strict=True)))
        for position, model in enumerate(MODELS)
    }
    return Row(name, read_name(name, caption), stated)


def _measured(block: str) -> Table:
    number, *lines = block.strip().split("\n")
    title, columns, caption = _TABLES[number]
    rows = tuple(_row(line, columns, caption) for line in lines)
    ours = _OURS.get(number, ())
    return Table(number, title, rows, ours, 148 if ours else caption.interval)


MEASURED = {table.number: table for table in map(_measured, _ROWS.split("# ")[1:])}
"""Tables 4.8 to 4.26 by number."""

STATED: Mapping[Configuration, Mapping[str, Figures]] = {
    row.configuration: row.stated for number in ("4.12", "4.26") for row in MEASURED[number].rows
}
"""The thesis's figures by configuration, where its ratios are to every version by itself."""
