"""Protected targets: what may be recorded there, by whom, here and at a remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import RemoteRefused, TargetProtected
from mvc.io.files import FileSystem
from mvc.remote.transports.folder import FolderTransport
from mvc.repo.config import set_value
from tests.remote.kit.serving import serving, token, transport
from tests.server.moving import move, record, served_folder

PROTECTED = "prod, prod/*"


def protect(root: Path, targets: str = PROTECTED) -> None:
    set_value(FileSystem(), root / ".mvc" / "config.yaml", "deploy.protect", targets)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    Repository.init(tmp_path / "repo").close()
    protect(tmp_path / "repo")
    with Repository.open(tmp_path / "repo") as opened:
        opened.commit({"w": np.zeros(3)})
        opened.commit({"w": np.ones(3)}, deploy="lab")
        yield opened


ACTS: dict[str, Callable[[Repository, str], object]] = {
    "deploy": lambda repo, target: repo.deploy("HEAD", target),
    "late": lambda repo, target: repo.deploy("HEAD", target, at="2026-01-01T10:00Z"),
    "commit": lambda repo, target: repo.commit({"w": np.full(3, 2.0)}, deploy=target),
    "retract": lambda repo, target: repo.retract("HEAD", target),
    "rollback": lambda repo, target: repo.rollback(target),
}


@pytest.mark.parametrize("target", ["prod", "prod/berlin"])
@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_recorded_by_the_way(repo: Repository, act: str, target: str) -> None:
    for rev in ("HEAD~1", "HEAD"):
        repo.deploy(rev, target, anyway=True)
    before = repo.deployments(), len(repo.log())
    with pytest.raises(TargetProtected, match="is protected"):
        ACTS[act](repo, target)
    assert (repo.deployments(), len(repo.log())) == before


@pytest.mark.parametrize("act", ["deploy", "late", "commit"])
@pytest.mark.parametrize("target", ["lab", "production", "x/prod"])
def test_other_targets_are_as_before(repo: Repository, act: str, target: str) -> None:
    ACTS[act](repo, target)


def test_what_is_meant_counts(repo: Repository) -> None:
    first, second = (repo.deploy(rev, "prod", anyway=True) for rev in ("HEAD~1", "HEAD"))
    assert repo.live("prod").commit == second.commit
    assert repo.rollback("prod", anyway=True).commit == first.commit
    repo.retract(None, "prod", anyway=True)
    assert repo.live("prod").commit == second.commit


def test_a_recorder_does_not_begin(repo: Repository) -> None:
    torch = pytest.importorskip("torch")
    from mvc import Recorder

    with pytest.raises(TargetProtected):
        Recorder(repo, torch.nn.Linear(2, 2), deploy="prod")
    with Recorder(repo, torch.nn.Linear(2, 2), deploy="lab") as recorder:
        recorder.step()


# -- at a remote -----------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "source") as made:
        record(made, 1)
        made.deploy("HEAD", "prod")
        yield made


def test_a_server_asks_for_a_scope_that_names_it(tmp_path: Path, source: Repository) -> None:
    folder = served_folder(tmp_path / "served")
    with serving(folder) as server:

        def of(scopes: str, name: str) -> object:
            return transport(f"{server.url}/models", token(folder, *scopes.split(), name=name))

        opened = of("push:* deploy:*", "any")
        opened.head()  # the repository is open before the setting changes
        protect(folder / "models")
        with pytest.raises(RemoteRefused, match="the remote protects prod"):
            move(source, opened, "heads/a")
        assert move(source, of("push:* deploy:prod", "named"), "heads/b") == ("heads/b",)
        source.deploy("HEAD", "prod")
        assert move(source, of("admin", "owner"), "heads/c") == ("heads/c",)


def test_a_folder_is_deployed_to_where_it_is(tmp_path: Path, source: Repository) -> None:
    shared = tmp_path / "shared"
    Repository.init(shared, bare=True).close()
    source.remotes.add("origin", str(shared))
    protect(shared)
    assert source.push("origin").denied == ("deploy:prod",)
    with Repository.open(shared) as repo:
        assert [ref.name for ref in repo.refs()] == ["main"] and not repo.targets()
        repo.deploy("main", "prod", anyway=True)
    protect(shared, "other")
    done = source.push("origin")
    assert done.denied == () and [each.target for each in done.refused] == ["prod"]
    source.fetch("origin")
    source.deploy("HEAD", "prod")
    assert not source.push("origin").is_short
    with Repository.open(shared) as repo:
        assert len(repo.deployments("prod")) == 2


def test_what_a_client_sends_all_the_same_is_refused(tmp_path: Path, source: Repository) -> None:
    shared = tmp_path / "shared"
    Repository.init(shared, bare=True).close()
    protect(shared)
    with Repository.open(shared) as repo:
        with pytest.raises(RemoteRefused, match="the remote protects prod"):
            move(
                source,
                FolderTransport("there", repo.handle.store, repo.handle.config),
                "heads/main",
            )
        assert not repo.refs() and not repo.targets()


def test_a_fetch_brings_what_has_happened(tmp_path: Path, source: Repository) -> None:
    with Repository.init(tmp_path / "clone") as made:
        made.remotes.add("origin", str(source.root))
    protect(tmp_path / "clone")
    with Repository.open(tmp_path / "clone") as repo:
        repo.fetch("origin")
        assert repo.targets() == ["prod"]


def test_a_bucket_protects_nothing(tmp_path: Path, source: Repository) -> None:
    (tmp_path / "bucket").mkdir()
    source.remotes.add("origin", f"bucket:{tmp_path / 'bucket'}")
    protect(source.root)
    with Repository.open(source.root) as repo:
        repo.push("origin")
