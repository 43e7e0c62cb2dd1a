"""Recipes of steps from a stranger: no command crashes, each says one clear line; no code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mvc as library
import mvc.recipes as recipes
from mvc.api import CommitOptions
from mvc.errors import MvcError, WeightsDropped
from mvc.ids import CommitId
from mvc.recipes.recipe import Batches, recipe_of, segment
from tests.cli.program import Mvc
from tests.recipes import by_hand
from tests.recipes.by_hand import full_state, mark_dropped, stepped

Forge = Callable[[library.Repository], CommitId]
FORGED: dict[str, Forge] = {}
NOBODY = CommitId(b"\7" * 32)
ROWS = ("1 2 3",)


def forged(make: Forge) -> Forge:
    FORGED[make.__name__] = make
    return make


def state(number: int) -> dict[str, np.ndarray]:
    return {"w": np.arange(12, dtype=np.float32) + np.float32(number)}


def raw(repo: library.Repository, recipe: bytes, *needs: CommitId, **carried: Any) -> CommitId:
    """A version that carries this text as its recipe."""
    return repo.commit(
        state(9), path=by_hand.PATH, attachments={"recipe.json": recipe, **carried},
        options=CommitOptions(needs=tuple(needs)),
    ).id  # fmt: skip


@forged
def from_a_version_that_nobody_has(repo: library.Repository) -> CommitId:
    return raw(repo, Batches(NOBODY, NOBODY, ROWS).encoded())


@forged
def from_no_full_state(repo: library.Repository) -> CommitId:
    start = repo.commit(state(0), path=by_hand.PATH).id
    return stepped(repo, state(1), Batches(start, start, ROWS))


@forged
def from_a_step(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    first = stepped(repo, state(1), Batches(start, start, ROWS))
    return stepped(repo, state(2), Batches(first, first, ROWS))


@forged
def behind_a_version_of_another_segment(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    other = full_state(repo, state(3))
    last = stepped(repo, state(4), Batches(other, other, ROWS))
    return stepped(repo, state(1), Batches(start, last, ROWS))


@forged
def behind_a_version_without_steps(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    other = repo.commit(state(3), path=by_hand.PATH).id
    return stepped(repo, state(1), Batches(start, other, ROWS))


@forged
def behind_the_version_before_its_start(repo: library.Repository) -> CommitId:
    first = full_state(repo, state(0))
    second = stepped(repo, state(1), Batches(first, first, ROWS))
    start = full_state(repo, state(2), last=Batches(first, second, ROWS))
    return stepped(repo, state(3), Batches(start, second, ROWS))


@forged
def with_steps_that_are_no_recipe(repo: library.Repository) -> CommitId:
    carried = {"steps.json": b'{"schema":"mvc.recipe/1"}'}
    start = repo.commit(state(0), path=by_hand.PATH, attachments=carried).id
    return stepped(repo, state(1), Batches(start, start, ROWS))


@forged
def with_steps_that_are_a_state(repo: library.Repository) -> CommitId:
    carried = {"steps.json": state(3)}
    start = repo.commit(state(0), path=by_hand.PATH, attachments=carried).id
    return stepped(repo, state(1), Batches(start, start, ROWS))


@forged
def with_steps_of_another_file(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    recipe = repo.attachment(start, "steps.json")
    named = recipe.replace(by_hand.PATH.encode(), b"elsewhere.safetensors")
    start = repo.commit(state(4), path=by_hand.PATH, attachments={"steps.json": named}).id
    return stepped(repo, state(1), Batches(start, start, ROWS))


@forged
def with_rows_that_are_none(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    text = Batches(start, start, ROWS).encoded()
    return raw(repo, text.replace(b"1 2 3", b"1 -2 3"), start)


@forged
def with_a_recipe_that_is_a_state(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    options = CommitOptions(needs=(start,))
    return repo.commit(
        state(1), path=by_hand.PATH, attachments={"recipe.json": state(2)}, options=options
    ).id


@forged
def with_a_very_long_text(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    return raw(repo, Batches(start, start, ("1 " * (9 << 20) + "1",)).encoded(), start)


@forged
def that_needs_other_versions_than_it_says(repo: library.Repository) -> CommitId:
    start = full_state(repo, state(0))
    return raw(repo, Batches(start, start, ROWS).encoded())


@pytest.mark.parametrize("what", FORGED)
def test_no_command_crashes_and_nothing_runs(mvc: Mvc, what: str) -> None:
    with library.Repository.open(mvc.folder) as repo:
        version = FORGED[what](repo)
        mark_dropped(repo.handle, version)
        repo.commit(state(99))
        repo.storage.gc(grace="0")
        with pytest.raises(WeightsDropped):
            repo.checkout(version)
        for read in (recipe_of, segment):
            try:
                read(repo, version)
            except MvcError as error:
                assert "\n" not in error.message and len(error.message) < 500
                break
        else:
            pytest.fail("the forgery is read as if it were honest")
        assert version not in recipes.alternatives(repo)
    mvc("remote", "add", "origin", mvc.folder / "server")
    library.Repository.init(mvc.folder / "server", bare=True).close()
    for words in (
        ("show", version), ("show", "--code", version), ("show", "--environment", version),
        ("log",), ("log", "--json"), ("stats",), ("fsck", "--full"), ("gc",), ("repack",),
        ("retrain", version, "--trust-code"), ("checkout", version), ("diff", version, "HEAD"),
        ("forget", "--weights", version), ("push",), ("fetch",),
    ):  # fmt: skip
        said = mvc(*words, code=None)
        assert said.code in ((3, 4) if words[0] in {"retrain", "forget"} else (0, 1, 3, 4)), words
        assert said.err.count("\n") <= 3, (words, said.err)
        assert said.code == 0 or words != ("show", version)
        assert "internal error" not in said.err and "Traceback" not in said.err, (words, said.err)
    library.clone(mvc.folder / "server", mvc.folder / "clone").close()


HONEST = Batches(NOBODY, NOBODY, ("1 2 3", "4"), (0, 1)).encoded()
STEPS = by_hand.recipe_of_state(state(0), {}, by_hand.ITSELF, None).encoded()


@st.composite
def altered(draw: st.DrawFn, honest: bytes) -> bytes:
    """Some of its bytes are others, are gone, or come twice."""
    data = bytearray(honest)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = at + draw(st.integers(0, 20))
        data[at:to] = draw(st.one_of(st.binary(max_size=8), st.just(bytes(data[at:to]) * 2)))
    return bytes(data)


@given(recipe=st.one_of(st.just(HONEST), altered(HONEST)), steps=altered(STEPS))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused_in_one_line(
    repo: library.Repository, recipe: bytes, steps: bytes
) -> None:
    start = repo.commit(state(0), path=by_hand.PATH, attachments={"steps.json": steps}).id
    named = recipe.replace(NOBODY.hex().encode(), start.hex().encode())
    version = raw(repo, named, start)
    for read in (recipe_of, segment):
        try:
            read(repo, version)
        except MvcError as error:
            assert "\n" not in error.message and len(error.message) < 500
