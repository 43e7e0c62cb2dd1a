from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

import mvc
from mvc.api.repository import Repository
from mvc.errors import InvalidName, WrongUsage
from mvc.repo.commit.inputs import paths_of
from mvc.repo.commit.request import CommitOptions


def test_paths_in_every_form() -> None:
    wanted = [Path("a"), Path("b")]
    assert paths_of("a") == paths_of(Path("a")) == [Path("a")]
    assert (
        paths_of(["a", Path("b")]) == paths_of(("a", "b")) == paths_of(iter(["a", "b"])) == wanted
    )
    assert paths_of([]) == []


@pytest.mark.parametrize("given", [torch.zeros(3), torch.tensor(1.0), [torch.zeros(3)], 7, b"ab"])
def test_what_is_no_content_is_refused(repo: Repository, given: object) -> None:
    with pytest.raises(WrongUsage, match="commit needs a mapping of tensors, or paths"):
        repo.commit(given)


@pytest.mark.parametrize(
    "model", [torch.nn.Linear(2, 2), torch.nn.Sequential(), [torch.nn.Linear(2, 2)]]
)
def test_a_module_is_answered_with_its_state(repo: Repository, model: object) -> None:
    with pytest.raises(WrongUsage) as caught:
        repo.commit(model)
    assert "model.state_dict()" in (caught.value.hint or "")


def test_a_datetime_is_a_moment(repo: Repository) -> None:
    moment = datetime(2026, 11, 20, 10, tzinfo=UTC)
    repo.commit({"w": torch.ones(2)}, deploy="prod", options=CommitOptions(at=moment))
    assert (
        repo.live("prod", at=moment + timedelta(seconds=1)).since_ns
        == int(moment.timestamp()) * 10**9
    )
    local = moment.astimezone().replace(tzinfo=None)
    assert torch.equal(repo.checkout(at=local, target="prod")["w"], torch.ones(2))
    with pytest.raises(WrongUsage, match="a moment is a text, a datetime"):
        repo.checkout(at=1.5)


@pytest.mark.parametrize("author", ["x\ny", "", " ", "a\x1b[1m", "\udc80", "x" * 2000])
def test_an_author_is_one_printable_line(repo: Repository, author: str) -> None:
    with pytest.raises(InvalidName, match="author"):
        repo.commit({"w": torch.ones(2)}, options=CommitOptions(author=author))


def test_a_committed_version_has_a_short_text(repo: Repository) -> None:
    done = repo.commit({"w": torch.ones(2)}, deploy="prod")
    text = repr(done)
    assert done.id.short in text and "main" in text and "raw_bytes=8" in text
    assert "tensor" not in text and len(text) < 120


def test_the_package_lists_what_it_has() -> None:
    assert dir(mvc) == sorted(mvc.__all__)
    assert {"Repository", "CommitResult", "MvcError", "__version__"} <= set(dir(mvc))
