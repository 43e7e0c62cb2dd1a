"""Additions lead forward only, whatever a record or a path says."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.store.graph.search import PathStep
from mvc.store.recovery.decode import pipeline_of
from mvc.store.recovery.grouped import walk_together
from tests.repo.lc.histories import first, grow, start


def test_a_short_form_in_a_record_is_refused(tmp_path: Path) -> None:
    """The graph would take its delta for one that can be undone."""
    with start(tmp_path) as repo:
        grow(repo, first(), 2)
        step = _addition(repo)
        pipeline_of(step)
        coding = type(step.member.coding)("lc:x=2")
        with pytest.raises(DamagedData, match="names a coding"):
            pipeline_of(replace(step, member=step.member._replace(coding=coding)))


def test_an_addition_is_not_undone(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        grow(repo, first(), 2)
        step = _addition(repo)
        path = repo.context.store.graph.path(step.member.id)
        wrong = replace(path, steps=(path.steps[0], replace(step, reverse=True)))
        out = memoryview(bytearray(step.member.nbytes))
        with pytest.raises(DamagedData, match="cannot be undone"):
            walk_together(repo.context.store.recovery.packs, [(wrong, out)])


def _addition(repo: object) -> PathStep:
    (entry,) = repo.manifest("HEAD").entries  # type: ignore[attr-defined]
    graph = repo.context.store.graph  # type: ignore[attr-defined]
    steps = (step for content in entry.contents for step in graph.path(content.id).steps[1:])
    return next(step for step in steps if step.member.coding.forward_only)
