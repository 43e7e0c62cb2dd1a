from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import RemoteRefused, WrongUsage
from mvc.remote.scopes import allows, parse_scopes, require, within


def test_scopes_are_given_one_by_one_or_with_commas() -> None:
    assert parse_scopes(["read,push:heads/*", "deploy:prod", "read"]) == (
        "read",
        "push:heads/*",
        "deploy:prod",
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "write", "push", "push:", "read:x", "admin:x", "a b:read", "../x:read", "push:x y",
        "push:a:b:c", "x:push", "read;admin", "push:he\nads", ":read", "x:", "push:" + "a" * 300,
    ],
)  # fmt: skip
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_scopes([text])


def test_a_scope_may_be_for_one_repository() -> None:
    scopes = parse_scopes(["team/a:read", "team/*:push:heads/main", "deploy:prod"])
    assert within(scopes, "team/a") == ("read", "push:heads/main", "deploy:prod")
    assert within(scopes, "team/b") == ("push:heads/main", "deploy:prod")
    assert within(scopes, "") == ("deploy:prod",)


def test_what_scopes_allow() -> None:
    held = ("read", "push:heads/nodes/7/*", "deploy:nodes/7/*")
    assert allows(held, "read")
    assert allows(held, "push", "heads/nodes/7/main")
    assert allows(held, "deploy", "nodes/7/prod")
    assert not allows(held, "push", "heads/main")
    assert not allows(held, "push", "tags/v1")
    assert not allows(held, "deploy", "prod")
    assert not allows(held, "admin")
    assert not allows(("push:heads/*",), "read")
    assert not allows(("push:heads/*",), "deploy", "heads/x")
    assert allows(("admin",), "deploy", "prod") and allows((), "admin")


def test_the_missing_scope_is_named() -> None:
    with pytest.raises(RemoteRefused, match="needs the scope push:heads/main"):
        require(("read",), "push", "heads/main")


def test_a_glob_of_no_kind_of_ref_is_of_branches() -> None:
    held = ("push:nodes/7/*",)
    assert allows(held, "push", "heads/nodes/7/main")
    assert not allows(held, "push", "heads/nodes/70/main")
    assert not allows(held, "push", "tags/nodes/7/v1")
    assert not allows(("push:tags/*",), "push", "heads/tags/x")
    assert not allows(held, "deploy", "nodes/7/prod")


@given(
    globs=st.lists(st.text("nodes/*?78ab", min_size=1, max_size=12), max_size=4),
    node=st.sampled_from(["7", "8", "78", "a"]),
)
def test_reports_need_a_scope_that_names_the_node(globs: list[str], node: str) -> None:
    """Whatever else it allows; a target that is none of nodes may be matched by any glob."""
    globs += ["*", "nodes/*", "nodes/?/prod", "n*", "nodes/7*", "nodes/*/prod"]
    held = [f"deploy:{glob}" for glob in globs]
    target = f"nodes/{node}/prod"
    named = any(g.startswith(f"nodes/{node}/") and fnmatchcase(target, g) for g in globs)
    assert allows(held, "deploy", target) == named
    assert allows([*held, f"deploy:nodes/{node}/*"], "deploy", target)
    assert allows([*held, "admin"], "deploy", target) and allows((), "deploy", target)
    assert allows(held, "deploy", "prod")


@pytest.mark.parametrize("glob", ["nodes/*", "nodes/7*", "nodes/?/prod", "nodes/7", "nodes/7/"])
def test_a_scope_for_reports_that_names_no_node_is_refused(glob: str) -> None:
    with pytest.raises(WrongUsage, match="does not name a node"):
        parse_scopes([f"models:deploy:{glob}"])
    assert parse_scopes(["deploy:nodes/7/*"]) and parse_scopes(["push:nodes/*"])
