"""Numbers of pages that are no measurement: settings, limits, formats, another's figures."""

from __future__ import annotations

from .sources import Claim, Stated

__all__ = ["CLAIMS", "STATED"]

_SAID = {
    "README.md": (
        "Python 3.11 or newer",
        "Apache License 2.0",
    ),
    "docs/optimizers.md": (
        "A conv net with dropout (136,586 parameters)",
    ),
    "docs/architecture.md": (
        "encode chunks of 1 MiB",
        "records of about 8 MiB",
        "slices of at most 64 MiB",
        "a content above 32 MiB",
    ),
    "docs/decisions.md": (
        "A delta names its base by the first 8 bytes",
        "This saves 24 bytes for each tensor",
        "have the same first 8 bytes",
        "has a checksum: the first 8 bytes",
        "is more than 0.1 points",
    ),
    "docs/signatures.md": ("(OpenSSH 8.8 or newer)",),
    "docs/distributed.md": (
        "within `timeout` plus 30 seconds",
        "(by default with rate 0.7 and momentum 0.9)",
        "by default 5 % |",
        "as fit into 5 % of",
    ),
    "docs/lc.md": (
        "up to 16,383 levels on each side",
        "are at most 5 % of the raw bytes",
        "makes -0.0 to +0.0",
    ),
    "docs/limits.md": (
        "Linux or macOS, Python 3.11 or newer",
        "a push repeats at most 64 MiB",
        "up to 5,000 connections in all",
        "has at most 107 bytes",
        "(before 1.6)",
        "equal bytes up to 2 MiB",
        "above 32 MiB, by a second reading",
        "up to 1 GiB of memory",
        "Before 1.0 a minor release",
    ),
    "docs/performance.md": (
        "Python 3.11 and torch 2.13.0",
        "The conv net has 887,530 parameters",
        "below 256 MiB of memory",
        "connections below 200 MiB",
    ),
    "docs/pipelines.md": (
        "(thesis 3.2.1), `drift:adwin` and `drift:page-hinkley` (6.3)",
        "E is from 0 to 1: 0.01 is one per cent",
        "the loss upper bound, 0.5 by default",
        "C from 0.000001 to 16",
        "0, 0.1 or 1 per cent",
        "`fine` is F, 0.5 by default",
        "than 0.52 steps (`hold`)",
    ),
    "docs/production.md": (
        "is 0.1 percentage points of accuracy",
        "drop of 0.1 points needs thousands",
    ),
    "docs/provenance.md": ("(12 s, proven",),
    "docs/recorder.md": ("`mvc config`, 60 s)", "`mvc config`, 600 s)"),
    "examples/README.md": (
        "at 28 x 28",
        "887,530 parameters in 12 tensors",
        "23,712,932 parameters, 320",
        "31 versions, 110.1 MB",
        "856 MB (853.7 MB parameters",
        "lr 1e-3, alpha 0.9, eps",
        "at 64 x 64",
        "(lr 0.03, momentum 0.9)",
    ),
    "examples/reproduce/drift/README.md": (
        "for 28 x 28 a",
        "net of 887,530 parameters, for texts a bidirectional LSTM of 1,905,924",
        "**Tables 4.3 to 4.6**",
        "### Table 4.26 on MNIST",
        "### Table 4.26 on texts",
    ),
    "examples/reproduce/distributed/README.md": (
        "`barrier` (0.01)",
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
        "less than 800 bytes beside",
        "mvc aims at 1.3 of the bound",
        "2 of them training and 0.5 the push",
    ),
    "examples/reproduce/drift/bounds.md": (
        "within these 30 batches in 95 % of all cases",
        "0.25 % for all comparisons",
        "at most 5 %: 4.75 % for all accounts",
    ),
}  # fmt: skip

CLAIMS: tuple[Claim, ...] = ()
STATED = tuple(Stated(page, says) for page, phrases in _SAID.items() for says in phrases)
