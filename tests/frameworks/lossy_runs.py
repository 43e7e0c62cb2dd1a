"""What the frameworks' tests of lossy pipelines ask of every version."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mvc
from mvc.serving.served_version import ServedVersion
from tests.training.runs import Bits, tensor_bits

PIPELINE = "vsol-0-fast"
BY_DATA = {"vsol-0.1-slow": "dsed:0.01", "drift:adwin | xor | zstd:1": "drift:adwin"}
"""Pipelines with a stage that asks for the batch."""
MODEL, TRAINING = "model.safetensors", "model.training.safetensors"


class Served:
    """What ``on_deploy`` was given: commits and bits, in order."""

    def __init__(self) -> None:
        self.versions: list[tuple[Any, Bits]] = []

    def __call__(self, delivered: ServedVersion) -> None:
        self.versions.append((delivered.commit, tensor_bits(delivered.state)))


def check_versions(
    repo: mvc.Repository, served: Served, count: int, exact: Collection[str]
) -> None:
    """``count`` versions, stored as they were delivered; no tensor of ``exact`` was changed.

    All were recorded with ``keep_training``. Every tensor that is not exact differs from that
    of the training in some version.
    """
    log = list(repo.log())[::-1]
    assert [entry.id for entry in log] == [commit for commit, _ in served.versions]
    assert len(log) == count and {entry.commit.pipeline for entry in log} == {PIPELINE}
    changed = set()
    for commit, bits in served.versions:
        assert tensor_bits(repo.checkout(commit, path=MODEL)) == bits
        trained = tensor_bits(repo.checkout(commit, path=TRAINING)["weights"])
        assert trained.keys() == bits.keys()
        changed |= {name for name, raw in trained.items() if raw != bits[name]}
    assert changed.isdisjoint(exact) and set(exact) <= trained.keys()
    assert changed
    deployments = [d.commit for d in repo.deployments("prod")]
    assert sorted(deployments) == sorted(commit for commit, _ in served.versions)
