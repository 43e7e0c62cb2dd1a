from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mvc.errors import AmbiguousRevision, InvalidTime, MvcError, UnknownRevision
from mvc.ids import CommitId
from mvc.repo import refs
from mvc.repo.context import Context
from mvc.repo.lookup.revisions import resolve, resolve_ref
from mvc.repo.times import format_time
from tests.repo.publishing import START, advance, commit, set_ref


@pytest.fixture
def line(context: Context) -> list[CommitId]:
    """Five versions on main, a minute apart."""
    made = []
    for _ in range(5):
        made.append(commit(context))
        advance(context, 60)
    return made


def test_names(context: Context, line: list[CommitId]) -> None:
    refs.create_tag(context, "v1", "HEAD~2")
    refs.create_branch(context, "side", "v1")
    assert resolve_ref(context, "HEAD") == (line[4], "main")
    assert resolve_ref(context, "main") == (line[4], "main")
    assert resolve_ref(context, "heads/main") == (line[4], "main")
    assert resolve_ref(context, "side") == (line[2], "side")
    assert resolve_ref(context, "v1") == (line[2], None)
    assert resolve_ref(context, "tags/v1") == (line[2], None)
    assert resolve_ref(context, "main~0") == (line[4], None)
    set_ref(context, "HEAD", line[0])
    assert resolve_ref(context, "HEAD") == (line[0], None)


def test_ids(context: Context, line: list[CommitId]) -> None:
    for id_ in line:
        with pytest.raises(UnknownRevision) as caught:
            resolve(context, id_.hex()[:3])
        assert caught.value.hint == "name an id by four of its digits or more"
        for digits in (4, 5, 10, 16, 17, 33, 63, 64):
            same = [i for i in line if i.hex().startswith(id_.hex()[:digits])]
            if len(same) == 1:
                assert resolve_ref(context, id_.hex()[:digits]) == (id_, None)
                assert resolve(context, id_.hex()[:digits].upper()) == id_


def test_steps(context: Context, line: list[CommitId]) -> None:
    side = commit(context, line[1], branch="side")
    merge = commit(context, line[4], side)
    assert resolve(context, "HEAD~") == resolve(context, "HEAD^") == line[4]
    assert resolve(context, "HEAD^0") == resolve(context, "HEAD~0") == merge
    assert resolve(context, "HEAD^2") == side
    assert resolve(context, "HEAD^2~1") == line[1]
    assert resolve(context, "HEAD~3") == resolve(context, "HEAD~1~~") == line[2]
    assert resolve(context, "HEAD^^^") == line[2]
    assert resolve(context, f"{line[3].hex()[:12]}~3") == line[0]


def test_steps_beyond_the_beginning(context: Context, line: list[CommitId]) -> None:
    with pytest.raises(UnknownRevision, match=line[0].short):
        resolve(context, "main~5")
    with pytest.raises(UnknownRevision, match="one parent"):
        resolve(context, "main^2")
    with pytest.raises(UnknownRevision, match="no parent"):
        resolve(context, "main~4^1")


def test_moments(context: Context, line: list[CommitId]) -> None:
    at = [format_time(START + i * 60 * 10**9, 0) for i in range(5)]
    for i in range(5):
        assert resolve_ref(context, f"main@{{{at[i]}}}") == (line[i], None)
        assert resolve(context, f"HEAD@{{{at[i]}}}") == line[i]
    assert resolve(context, f"main@{{{at[3]}}}~2") == line[1]
    assert resolve(context, "main@{90 seconds ago}") == line[3]
    assert resolve(context, "main@{now}") == line[4]
    with pytest.raises(UnknownRevision, match="pointed to no version") as caught:
        resolve(context, "main@{1 day ago}")
    assert format_time(START) in (caught.value.hint or "")
    with pytest.raises(InvalidTime):
        resolve(context, "main@{whenever}")
    with pytest.raises(UnknownRevision):
        resolve(context, "nothing@{now}")


def test_head_at_a_moment_is_that_of_the_branch_it_was_on(
    context: Context, line: list[CommitId]
) -> None:
    refs.create_branch(context, "side", "main~3")
    set_ref(context, "HEAD", "side")
    advance(context, 60)
    side = commit(context, branch="side")
    advance(context, 60)
    set_ref(context, "HEAD", line[2])
    assert resolve(context, "HEAD@{now}") == line[2]
    assert resolve(context, "HEAD@{60 seconds ago}") == side
    assert resolve(context, "HEAD@{61 seconds ago}") == line[1]
    assert resolve(context, "HEAD@{121 seconds ago}") == line[4]


def test_a_deleted_branch_is_still_found_in_the_past(
    context: Context, line: list[CommitId]
) -> None:
    refs.create_branch(context, "side", "main~3")
    advance(context, 60)
    refs.delete_branch(context, "side")
    assert resolve(context, "side@{30 seconds ago}") == line[1]
    with pytest.raises(UnknownRevision):
        resolve(context, "side@{now}")
    with pytest.raises(UnknownRevision):
        resolve(context, "side")


def test_close_names_are_listed(context: Context, line: list[CommitId]) -> None:
    refs.create_branch(context, "experiment")
    with pytest.raises(UnknownRevision) as caught:
        resolve(context, "experimnt")
    assert "experiment" in (caught.value.hint or "")
    missing = next(
        f"{i:04x}" for i in range(16) if not any(c.hex().startswith(f"{i:04x}") for c in line)
    )
    with pytest.raises(UnknownRevision):
        resolve(context, missing)


def test_an_ambiguous_id_lists_the_candidates(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: dict[str, CommitId] = {}
    while True:  # a pair whose ids begin alike, by the birthday bound in some 300 attempts
        id_ = commit(context, message="hello")
        if (other := ids.get(id_.hex()[:4])) is not None:
            break
        ids[id_.hex()[:4]] = id_
    with pytest.raises(AmbiguousRevision) as caught:
        resolve(context, id_.hex()[:4])
    assert id_.short in caught.value.message and other.short in caught.value.message
    assert resolve(context, id_.hex()[:20]) == id_


def test_a_name_comes_before_an_id(context: Context, line: list[CommitId]) -> None:
    digits = line[0].hex()[:6]
    refs.create_branch(context, digits, "main~2")
    assert resolve(context, digits) == line[2]
    assert resolve(context, line[0].hex()[:7]) == line[0]


@pytest.mark.parametrize(
    "text", ["", " ", "~1", "^", "@{now}", "main~x", "main@", "main@{now", "main}", "main@{now}x",
             "main~2@{now}", "a" * 300, "main~" + "1" * 40, "\x00", "main^-1", "abc", "..", "x\ny"],
)  # fmt: skip
def test_what_is_no_revision(context: Context, line: list[CommitId], text: str) -> None:
    with pytest.raises(UnknownRevision) as caught:
        resolve(context, text)
    assert "\x00" not in caught.value.message and "\n" not in caught.value.message
    assert caught.value.hint


def test_nothing_committed_yet(context: Context) -> None:
    for text in ("HEAD", "HEAD~1"):
        with pytest.raises(UnknownRevision, match="main"):
            resolve(context, text)
    with pytest.raises(UnknownRevision):
        resolve(context, "HEAD@{now}")
    with pytest.raises(UnknownRevision):
        resolve(context, os.urandom(32).hex())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.text(max_size=30) | st.text("HEADmain~^@{}0123456789abcdef now", max_size=30))
def test_any_text_resolves_or_is_refused(context: Context, text: str) -> None:
    if refs.head(context).commit is None:
        commit(context)
    try:
        resolve(context, text)
    except MvcError as e:
        assert e.message and "\n" not in e.message
