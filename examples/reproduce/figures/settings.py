"""Numbers of pages that are no measurement: settings, limits, formats, another's figures."""

from __future__ import annotations

from .sources import Claim, Stated

__all__ = ["CLAIMS", "STATED"]

_SAID = {
    "README.md": (
        "Python 3.11 or newer",
        "110 MB ¹ | 104 MB ¹ |",
        "371 MB ¹ | 853 MB ¹ | 397 MB ¹",
        "files below 512 MiB",
    ),
    "docs/architecture.md": (
        "Pieces of 32 MiB are cut into chunks of 1 MiB",
        "About 8 MiB of raw bytes",
        "(16 MiB, or one larger tensor)",
        "It has up to 64 MiB",
        "cut into pieces of 32 MiB",
    ),
    "docs/distributed.md": (
        "at least every 5 seconds",
        "+ 30 seconds after a process",
        "begin: 15 seconds to start",
        "It may take 15 seconds",
        "after 10 seconds at most",
        "3 seconds later",
        "(0.7 and 0.9 unless you say otherwise)",
        "`barrier` (0.01)",
        "by default 5 % |",
        "as fit into 5 % of",
        "(a header of 11 bytes",
        "a head of 28 bytes",
        "adds 52 bytes of headers",
    ),
    "docs/frontier.md": ("than 0.52 steps (`hold`)", "more bytes than 0.52, without"),
    "docs/lc.md": (
        "up to 16,383 levels on each side",
        "are at most 5 % of the raw bytes",
        "that 16,383 levels do not suffice",
        "makes -0.0 to +0.0",
    ),
    "docs/limits.md": (
        "in packs of 128 MiB",
        "its slice (up to 64 MiB",
        "came last (up to 16 MiB",
        "has at most 1,023 data sets",
        "(before 1.6, or",
        "takes more than 1,024 bytes",
        "searches about 2 MiB",
        "above 32 MiB, by a second reading",
        "begin with the same 8 bytes",
        "10 ms to open, 0.15 ms for each record, 1 GB/s to write, 0.1 ms to make a file, and 5 ms",
        "up to 1 GiB of memory",
        "up to 5,000 connections in all",
        "has at most 107 bytes",
        "It needs Python 3.11",
    ),
    "docs/models.md": (
        "more than 500 files or 16 MiB of code, more than 1 MiB of arguments",
        "minor version such as 3.12",
    ),
    "docs/performance.md": ("Python 3.11 and torch 2.13.0",),
    "docs/pipelines.md": (
        "`drift:page-hinkley` (6.3)",
        "E from 0 to 1, 0.01 is one per cent",
        "to P at 0.5 and above: p = f(loss / 0.5)",
        "0, 0.1 or 1 per cent",
    ),
    "docs/production.md": ("the last 262,144 numbers",),
    "docs/provenance.md": ("(12 s, proven",),
    "docs/python.md": ("waits more than 60 s",),
    "docs/recorder.md": ("`mvc config`, 60 s)", "`mvc config`, 600 s)"),
    "docs/relations.md": ("-0.0 is not 0.0",),
    "examples/README.md": (
        "at 28 x 28",
        "lr 1e-3, alpha 0.9, eps",
        "at 64 x 64",
        "(lr 0.03, momentum 0.9)",
    ),
    "examples/reproduce/drift/README.md": (
        "for 28 x 28 a",
        "net of 887,530 parameters, for texts a bidirectional LSTM of 1,905,924",
        "**Tables 4.3 to 4.6**",
        "Table 4.6 on digits",
        "### Table 4.26 on MNIST",
        "### Table 4.26 on texts",
        "the thesis states 2.04 s",
    ),
    "examples/reproduce/distributed/README.md": (
        "the spherical cap with T = 0.5",
        "c_r = 0.5, `local-sgd@16`",
        "Adam (0.9, 0.99)",
        "with 95 % intervals",
        "is within 0.5 points of `central`, and code",
        "100 less 100 times the mean squared error",
        "an LSTM of 3,216 parameters), IDX",
        "62,922 parameters at ten classes",
        "torch 2.13, five seeds",
        "rates 0.002, 0.005, 0.01 and 0.02, and 0.0008, 0.04 and 0.08 where",
        "with `fgm@10` at the rate 0.02",
        "the rate 0.005: the best of 0.002, 0.005 and 0.01",
        "trained on 40 % of the digits",
        "a network of 3,041 numbers",
        "text describes (3,801)",
        "differ by exactly 0.06",
        "one epoch over 40,000 of Toronto's crimes",
        "warm-up on 5 % of them, Adam with the rate 0.02",
        "At rho 0.3 FGM is nearly silent",
        "At rho 0.1 it makes",
        "FGM at rho 0.3 forgets it",
    ),
    "examples/reproduce/derived/README.md": (
        "The thesis's 78,622 and 203,218 bytes",
    ),
}  # fmt: skip

CLAIMS: tuple[Claim, ...] = ()
STATED = tuple(Stated(page, says) for page, phrases in _SAID.items() for says in phrases)
