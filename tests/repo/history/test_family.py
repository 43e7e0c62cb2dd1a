"""Which models came from which, through the public repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import DamagedData, StateForgotten
from mvc.ids import ManifestId
from mvc.model.manifest import Manifest
from mvc.repo.history.family import FamilyMember
from mvc.repo.lookup.manifest_stream import ManifestStream
from tests.report.test_page import EVIL, Page

State = dict[str, np.ndarray]


def net(seed: int, layers: int = 4) -> State:
    rng = np.random.default_rng(seed)
    return {f"l{i}.weight": rng.standard_normal((4, 4)) for i in range(layers)}


def on(branch: str) -> mvc.CommitOptions:
    return mvc.CommitOptions(branch=branch)


def tuned(state: State, seed: int) -> State:
    return state | {"l3.weight": net(seed)["l3.weight"]}


def kinds(repo: mvc.Repository, rev: str | None = None) -> list[tuple[str, str, int | None]]:
    found = repo.family(rev).members
    return [(m.commit.message, m.relation.kind, m.base) for m in found]


def test_nodes_that_learn_from_one_base(repo: mvc.Repository) -> None:
    """U1, U3 on two nodes, U2 on the server: the flow of the MMlib thesis."""
    base = net(0)
    repo.commit(base, message="U1", deploy="server")
    for name in ("node-1", "node-2"):
        repo.branch(name)
        state = base
        for i in (1, 2):
            state = tuned(state, 10 * i + len(name))
            repo.commit(state, message=f"{name} {i}", options=on(name), deploy=name)
    repo.commit(net(1), message="U2")
    assert kinds(repo) == [
        ("U1", "base", None),
        ("node-1 1", "fine-tuned version", 0),
        ("node-1 2", "fine-tuned version", 1),
        ("node-2 1", "fine-tuned version", 0),
        ("node-2 2", "fine-tuned version", 3),
        ("U2", "fully updated", 0),
    ]
    members = repo.family().members
    assert [m.names for m in members] == [(), (), ("node-1",), (), ("node-2",), ("HEAD", "main")]
    assert [m.targets for m in members] == [("server",), (), ("node-1",), (), ("node-2",), ()]
    assert kinds(repo, "node-1~1") == [
        ("node-1 1", "fine-tuned version", None),
        ("node-1 2", "fine-tuned version", 0),
    ]
    assert [e.relations[0].kind for e in repo.log(relations=True)] == ["fully updated", "base"]
    assert repo.log()[0].relations is None


def test_across_paths(repo: mvc.Repository) -> None:
    """A new path is related to the closest model; an unchanged one is no new model."""
    a, b = net(0), {"emb": np.ones((3, 5))}
    repo.commit(states={"a.safetensors": a, "b.safetensors": b}, message="two")
    bigger = {f"backbone.{key}": value for key, value in a.items()} | {"head": np.zeros(2)}
    repo.commit(states={"c.safetensors": bigger}, message="c from a")
    repo.commit(states={"c.safetensors": bigger | {"head": np.ones(2)}}, message="c tuned")
    repo.tag("v1")
    found = [(m.commit.message, m.path, m.relation.kind, m.base) for m in repo.family().members]
    assert found == [
        ("two", "a.safetensors", "base", None),
        ("two", "b.safetensors", "base", None),
        ("c from a", "c.safetensors", "extended", 0),
        ("c tuned", "c.safetensors", "fine-tuned version", 2),
    ]
    # The names of a version belong to all models that it holds.
    assert [m.names for m in repo.family().members] == [
        ("HEAD", "main", "tag: v1"), ("HEAD", "main", "tag: v1"), (), ("HEAD", "main", "tag: v1"),
    ]  # fmt: skip
    assert [m.base for m in repo.family("HEAD~1").members] == [None, None, 0, 2]
    words = [[(r.path[0], r.kind) for r in e.relations] for e in repo.log(relations=True)]
    assert words[0] == [("a", "equal"), ("b", "equal"), ("c", "fine-tuned version")]


def test_a_data_set_is_no_model(repo: mvc.Repository, tmp_path: Path) -> None:
    repo.commit({"w": np.zeros(4)})
    np.savez(tmp_path / "digits.npz", x=np.arange(20))
    repo.recipes.add_data(tmp_path / "digits.npz", name="digits")
    assert [member.path for member in repo.family().members] == ["model.safetensors"]


def test_an_equal_model_is_no_new_one(repo: mvc.Repository) -> None:
    repo.commit(net(0), message="one")
    repo.commit(net(0), message="again")
    repo.commit(states={"copy.safetensors": net(0)}, message="copy")
    assert kinds(repo) == [("one", "base", None), ("copy", "equal", 0)]
    assert repo.family().members[0].names == ("HEAD", "main")
    assert [e.relations[0].kind for e in repo.log(relations=True)] == ["equal", "equal", "base"]


def test_a_forgotten_version_is_passed_over(repo: mvc.Repository) -> None:
    state = net(0)
    repo.commit(state, message="one")
    for i in range(3):
        state = tuned(state, i + 5)
        repo.commit(state, message=f"tune {i}")
    repo.storage.forget(["HEAD~1", "HEAD~2"])
    assert kinds(repo) == [("one", "base", None), ("tune 2", "fine-tuned version", 0)]
    with pytest.raises(StateForgotten):
        repo.family("HEAD~1")
    repo.tag("gone", "HEAD~1")
    assert repo.family().members[0].names == ()
    found = [e.relations and e.relations[0].kind for e in repo.log(relations=True)]
    assert found == ["fine-tuned version", None, None, "base"]


def test_a_damaged_version_is_passed_over_if_wished(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    line(repo, 2)
    damaged, load = repo.version("HEAD~1").manifest, ManifestStream.load

    def fail(self: ManifestStream, id_: ManifestId) -> Manifest:
        if id_ == damaged:
            raise DamagedData("lost")
        return load(self, id_)

    monkeypatch.setattr(ManifestStream, "load", fail)
    with pytest.raises(DamagedData):
        repo.family()
    incomplete: list[DamagedData] = []
    found = repo.family(incomplete=incomplete).members
    assert [(m.commit.message, m.base) for m in found] == [("base", None), ("tune 1", 0)]
    assert [error.message for error in incomplete] == ["lost"]


def test_the_training_beside_a_model_is_no_model(repo: mvc.Repository) -> None:
    training = {"optimizer": {"step": np.ones(1)}}
    for value in range(2):
        states = {"m.safetensors": tuned(net(0), value), "m.training.safetensors": training}
        repo.commit(states=states, message=f"{value}")
    assert kinds(repo) == [("0", "base", None), ("1", "fine-tuned version", 0)]


def test_an_empty_repository(repo: mvc.Repository) -> None:
    assert repo.family().members == ()
    assert repr(repo.family()) == "<Family: no models>"
    with pytest.raises(mvc.MvcError):
        repo.family("nowhere")


def line(repo: mvc.Repository, count: int) -> None:
    """A base and fine-tuned versions of it."""
    state = net(0)
    repo.commit(state, message="base")
    for i in range(count):
        state = tuned(state, i + 1)
        repo.commit(state, message=f"tune {i}")


def test_plain_versions_in_a_row_are_one_line(repo: mvc.Repository) -> None:
    line(repo, 13)
    lines = repr(repo.family()).splitlines()
    assert [text.partition("  ")[2] for text in (lines[0], lines[2])] == [
        "base model model.safetensors  base",
        "fine-tuned version (HEAD, main)  tune 12",
    ]
    assert lines[1:2] == ["… 12 fine-tuned versions"] and len(lines) == 3
    assert len(repo.family().rows(every=True)) == 14
    repo.tag("v1", "HEAD~6")
    lines = repr(repo.family()).splitlines()
    assert [lines[1], lines[3]] == ["… 6 fine-tuned versions", "… 5 fine-tuned versions"]
    assert lines[2].endswith("fine-tuned version (tag: v1)  tune 6")


def test_branches_are_drawn_below_their_base(repo: mvc.Repository) -> None:
    line(repo, 1)
    for name in ("a", "b"):
        repo.branch(name)
        repo.commit(tuned(net(0), 50 + ord(name)), message=name, options=on(name))
        repo.commit(net(ord(name)), message=f"{name} on", options=on(name))
    found = [(row.prefix, row.depth, row.above) for row in repo.family().rows()]
    assert found == [
        ("", 0, None), ("", 0, 0), ("├─ ", 1, 1), ("│  ", 1, 2), ("└─ ", 1, 1), ("   ", 1, 4),
    ]  # fmt: skip


def test_a_long_history_takes_no_deep_stack(repo: mvc.Repository) -> None:
    commit = repo.commit(net(0)).commit
    first = repo.family().members[0]
    members = [first, *(_member(first, i) for i in range(5000))]
    from mvc.report.family import Family

    assert len(Family(members).rows(every=True)) == 5001
    assert len(Family(members).rows()) == 3 and commit is not None


def _member(first: FamilyMember, base: int) -> FamilyMember:
    from msgspec.structs import replace

    related = replace(first.relation, kind="fully updated", base_path=first.path)
    return replace(first, base=base, relation=related, names=())


def test_the_drawing_is_whole_and_loads_nothing(repo: mvc.Repository) -> None:
    line(repo, 5)
    repo.commit(net(1), message=EVIL * 9, deploy="prod")
    drawn = repo.family().svg()
    page = Page(f"<b id='x'>{drawn}</b>")
    assert page.tags["script"] == page.tags["image"] == 0 and "href" not in drawn
    assert not {c for c in drawn if ord(c) < 32} - {"\n"} and "\u202e" not in drawn
    assert "prefers-color-scheme:dark" in drawn and drawn.startswith("<svg xmlns=")
    assert page.tags["circle"] == len(repo.family().rows()) == 3
    assert "… 5 fine-tuned versions" in page.text
    assert repo.family()._repr_svg_() == drawn
