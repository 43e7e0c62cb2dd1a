"""Figures of distributed training."""

from __future__ import annotations

from typing import Any

from .sources import Claim, Stated, report

__all__ = ["CLAIMS", "STATED"]

README = "examples/reproduce/distributed/README.md"


def row(name: str, setting: str, workers: int = 8) -> dict[str, Any]:
    """The figures of a protocol."""
    rows = report(f"distributed-{name}")["rows"]
    return next(row for row in rows if (row["setting"], row["workers"]) == (setting, workers))


def sent(name: str, setting: str, workers: int = 8) -> float:
    """Bytes in both directions, the mean over seeds."""
    found = row(name, setting, workers)["runs"]["bytes"]
    return float(sum(found) / len(found))


def _times(*others: str) -> list[float]:
    """How many times FGM's bytes other protocols send at an equal threshold: least and most."""
    names = ("digits", "toronto", "workers", "seeds", "default-toronto", "default-fashion", "long")
    ratios = [
        pair["ratio"]
        for name in names
        for pair in report(f"distributed-{name}")["pairs"]
        if pair["why"] == "equal threshold"
        and pair["setting"] in {"fgm", "fgm@10"}
        and pair["against"].partition("@")[0] in others
    ]
    return [min(ratios), max(ratios)]


def _below_sync() -> list[float]:
    """Of the protocols with 32 workers that seldom talk: the least and the most."""
    rows = [each for each in report("distributed-workers")["rows"] if each["workers"] == 32]
    sync = row("workers", "sync", 32)["accuracy"]
    below = [sync - each["accuracy"] for each in rows if each["setting"] not in ("sync", "central")]
    return [min(below), max(below)]


CLAIMS: tuple[Claim, ...] = (
    Claim(README, "GM with balancing sends {} to {} times as much", lambda: _times("gm")),
    Claim(
        README,
        "first violation about as much ({} to {} times)",
        lambda: _times("gm-full"),
    ),
    Claim(
        README,
        "`distributed-default-fashion.json`: {} images, 4 workers, two epochs in batches of 8, {}",
        lambda: [
            report("distributed-default-fashion")["about"]["training samples"],
            row("default-fashion", "sync", 4)["rounds"],
        ],
    ),
    Claim(
        README,
        "`distributed-default-toronto.json`: {} of them",
        lambda: [report("distributed-default-toronto")["about"]["training samples"]],
    ),
    Claim(
        README,
        "`distributed-texts.json`: {} descriptions of Debian's packages, 4 workers, four epochs in "
        "batches of 4, {} updates; an embedding and two LSTMs of {} parameters",
        lambda: [
            report("distributed-texts")["about"]["training samples"],
            row("texts", "sync", 4)["rounds"],
            report("distributed-texts")["about"]["parameters"],
        ],
    ),
    Claim(
        README,
        "a dense network of {} parameters",
        lambda: [report("distributed-default-fashion")["about"]["parameters"]],
    ),
    Claim(
        README,
        "`fgm@10` reaches {} ± {} with {} times fewer bytes",
        lambda: [
            row("toronto-rates", "fgm@10")["accuracy"],
            row("toronto-rates", "fgm@10")["accuracy_interval"],
            sent("toronto", "sync") / sent("toronto-rates", "fgm@10"),
        ],
    ),
    Claim(README, "that seldom talk are {} to {} points below `sync`", _below_sync),
    Claim(
        README,
        "within 0.5 points of `central` ({} kB)",
        lambda: [sent("periods", "local-sgd@192") / 1e3],
    ),
    Claim(
        README,
        "and sends {} times the bytes of averaging",
        lambda: [sent("drift-all", "fgm@0.3") / sent("drift-all", "local-sgd@16")],
    ),
    Claim(
        README,
        "class comes as after, and sends {} times those bytes",
        lambda: [sent("drift-all", "fgm@0.1") / sent("drift-all", "local-sgd@16")],
    ),
)
STATED = (
    Stated(README, "60,000 of them,"),
    Stated(README, "20,000 images,"),
    Stated(README, "in batches of 8, 1,062 updates"),
    Stated(README, "network of 25,450 parameters"),
    Stated(README, "1,051 updates a worker. `central`"),
    Stated(README, "It makes 32 times as many updates"),
    Stated(README, "at c_r of 0.5 and 0.7 no flush"),
    Stated(README, "than GM for T from 0.1 to 1, up to"),
    Stated(README, "round (T = 0.01 with the norm)"),
    Stated(README, "one of which is 0.28 points"),
)
