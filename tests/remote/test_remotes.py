from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import (
    InvalidConfig,
    InvalidName,
    IoFailed,
    NotARepository,
    RefConflict,
    RemoteUnreachable,
    UnknownRevision,
    WrongUsage,
)
from mvc.io.files import FileSystem
from mvc.remote.kinds import KINDS, RemoteKind
from mvc.remote.remotes import (
    Remote,
    add_remote,
    find_remote,
    normalised,
    remotes,
    remove_remote,
    states_of,
)
from mvc.remote.transports.bucket.objects import FolderObjects
from mvc.remote.transports.opening import open_transport

HERE = Path("/here")


@pytest.mark.parametrize(
    ("given", "kept", "scheme"),
    [
        ("/srv/models", "/srv/models", "file"),
        ("models", "/here/models", "file"),
        ("file:///srv/models", "/srv/models", "file"),
        ("file://localhost/srv/models", "/srv/models", "file"),
        ("ssh://me@gpu.lab:2222/srv/m", "ssh://me@gpu.lab:2222/srv/m", "ssh"),
        ("SSH://gpu/~/m", "ssh://gpu/~/m", "ssh"),
        ("ssh://[::1]/m", "ssh://[::1]/m", "ssh"),
        ("https://models.lab/vision", "https://models.lab/vision", "https"),
        ("http://127.0.0.1:7433/m", "http://127.0.0.1:7433/m", "http"),
        ("unix:run/mvc.sock", "unix:/here/run/mvc.sock", "unix"),
        ("bucket:/mnt/nfs/m", "bucket:/mnt/nfs/m", "bucket"),
        ("s3://weights/vision", "s3://weights/vision", "s3"),
    ],
)
def test_a_url_is_kept_whole(given: str, kept: str, scheme: str) -> None:
    assert normalised(given, HERE) == kept
    assert normalised(kept, Path("/elsewhere")) == kept
    assert Remote(kept).scheme == scheme


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://me:secret@models.lab/m", "must not contain a password"),
        ("https://token@models.lab/m", "must not contain a password"),
        ("ssh://me:secret@gpu/m", "must not contain a password"),
        ("s3://key:secret@bucket/m", "must not contain a password"),
        ("https://models.lab/m?token=secret", "query or fragment"),
        ("ssh://-oProxyCommand=touch/m", "not a valid host"),
        ("ssh://-x@gpu/m", "not a valid host"),
        ("ssh:///m", "not a valid host"),
        ("ssh://gpu:99999/m", "not a valid host"),
        ("https://models.lab:0/m", "not a valid host"),
        ("git://gpu/m", "does not support git"),
        ("me@gpu:models", "not a URL that mvc reads"),
        ("", "not a valid URL"),
        ("a\nb", "not a valid URL"),
        ("x" * 5000, "not a valid URL"),
        ("bucket:", "path"),
    ],
)
def test_a_bad_url_is_refused_without_its_secret(url: str, told: str) -> None:
    with pytest.raises(WrongUsage, match=told) as caught:
        normalised(url, HERE)
    assert "secret" not in f"{caught.value}{caught.value.hint}"
    assert caught.value.hint


def test_remotes_are_added_changed_and_removed(repo: Repository) -> None:
    context = repo.handle
    assert remotes(context.store) == {}
    add_remote(context.store, Remote("/srv/m", "origin"))
    add_remote(context.store, Remote("ssh://gpu/m", "backup", lazy=True, states="last:3"))
    assert [(r.name, r.url, r.lazy) for r in remotes(context.store).values()] == [
        ("origin", "/srv/m", False),
        ("backup", "ssh://gpu/m", True),
    ]
    with pytest.raises(RefConflict, match="/srv/m"):
        add_remote(context.store, Remote("/srv/other", "origin"))
    add_remote(context.store, Remote("/srv/other", "origin"), force=True)
    assert find_remote(context.store).url == "/srv/other"
    origin = find_remote(context.store).folder(context.store)
    (origin / "place").write_bytes(b"")
    assert remove_remote(context.store, "origin").url == "/srv/other"
    assert not origin.exists()
    assert find_remote(context.store).name == "backup"
    text = (repo.root / ".mvc" / "remotes.yaml").read_text()
    assert text == "backup:\n  url: ssh://gpu/m\n  lazy: true\n  states: last:3\n"


def test_files_that_options_name_hold_from_any_folder(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    made = repo.remotes.add("lab", "https://lab/net", token_file="~/token", ca_file="tls/ca.pem")
    assert made.token_file == "/home/ada/token" and made.ca_file == str(tmp_path / "tls/ca.pem")
    assert repo.remotes.find("lab") == made


def test_which_remote_is_meant(repo: Repository) -> None:
    context = repo.handle
    with pytest.raises(UnknownRevision, match="this repository has no remote") as caught:
        find_remote(context.store)
    assert "mvc remote add" in str(caught.value.hint)
    for name in ("a", "b"):
        add_remote(context.store, Remote(f"/srv/{name}", name))
    with pytest.raises(WrongUsage, match="a, b"):
        find_remote(context.store)
    with pytest.raises(UnknownRevision, match="no remote c"):
        find_remote(context.store, "c")
    assert find_remote(context.store, "ssh://gpu/m") == Remote("ssh://gpu/m")
    add_remote(context.store, Remote("/srv/o", "origin"))
    assert find_remote(context.store).name == "origin"


@pytest.mark.parametrize("name", ["", "a/b", "-a", "x" * 33, "HEAD", "a b", "..", "ä"])
def test_bad_names_of_remotes(repo: Repository, name: str) -> None:
    with pytest.raises(InvalidName):
        add_remote(repo.handle.store, Remote("/srv/m", name))


@pytest.mark.parametrize(
    "text",
    [
        "- a\n", "origin: 3\n", "origin: {}\n", "origin: {url: 3}\n", "origin: {url: m}\n",
        "origin: {url: /m, secret: x}\n", "origin: {url: /m, lazy: 3}\n",
        "origin: {url: 'https://a:b@c/m'}\n", "'../x': {url: /m}\n",
        "origin: {url: /m, states: x}\n",
        "origin: {url: 'ssh://-oProxyCommand=x/m'}\n", "a: &a {b: *a}\n",
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_name(repo: Repository, text: str) -> None:
    (repo.root / ".mvc" / "remotes.yaml").write_text(text)
    with pytest.raises(InvalidConfig, match=r"remotes\.yaml"):
        remotes(repo.handle.store)


def test_a_folder_that_leads_elsewhere_is_not_used(repo: Repository, tmp_path: Path) -> None:
    add_remote(repo.handle.store, Remote("/srv/m", "origin"))
    (tmp_path / "else").mkdir()
    place = repo.root / ".mvc" / "remotes"
    place.symlink_to(tmp_path / "else")
    with pytest.raises(IoFailed, match="symbolic link"):
        find_remote(repo.handle.store).folder(repo.handle.store)
    assert not list((tmp_path / "else").iterdir())


@pytest.mark.parametrize("kind", KINDS.values())
def test_the_module_of_each_kind_has_what_its_row_says(kind: RemoteKind) -> None:
    module = kind.load()
    assert callable(module.open_objects if kind.is_bucket else module.open_transport)
    assert hasattr(module, "run") == kind.runs_commands


SHELF: list[Path] = []


def open_objects(remote: Remote) -> FolderObjects:
    """Of the kind ``shelf``, which is a row and this function."""
    assert remote.url == "shelf://top/models"
    return FolderObjects(FileSystem(), SHELF[-1])


def test_a_row_and_a_module_make_a_kind_of_remote(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = RemoteKind("shelf://PLACE/NAME", __name__, "top|bottom", "none", is_bucket=True)
    monkeypatch.setitem(KINDS, "shelf", row)
    SHELF.append(tmp_path / "shelf")
    SHELF[-1].mkdir()
    with pytest.raises(WrongUsage, match="not a valid host: 'middle'"):
        repo.remotes.add("origin", "shelf://middle/models")
    repo.remotes.add("origin", "shelf://top/models")
    made = repo.commit({"w": np.ones(9, np.float32)})
    repo.push("origin")
    with mvc.clone("shelf://top/models", tmp_path / "clone") as ada:
        assert ada.version("main").id == made.id
        assert repo.remotes.maintain("origin", lambda there: there.version("main").id) == made.id


def test_states() -> None:
    assert [states_of(text) for text in ("all", "none", "live", "last:1")] == ["all", "none", 0, 1]
    for text in ("last", "last:-1", "last:x", "some", "last:10000000000"):
        with pytest.raises(WrongUsage, match="all, none, live or last:N"):
            states_of(text)


class _OnNetwork(FileSystem):
    def is_network_filesystem(self, path: Path) -> bool:
        return True


def test_a_folder_that_cannot_be_a_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RemoteUnreachable, match="no folder") as missing:
        open_transport(str(tmp_path / "gone"))
    assert "mvc init --bare" in str(missing.value.hint)
    with pytest.raises(NotARepository, match="not a repository"):
        open_transport(str(tmp_path))
    monkeypatch.setattr("mvc.remote.transports.folder.FileSystem", _OnNetwork)
    with pytest.raises(RemoteUnreachable, match="network file system") as caught:
        open_transport(str(tmp_path))
    assert "bucket:" in str(caught.value.hint)
    assert "ssh://" in str(caught.value.hint)


IMPORTED = (
    "import sys, mvc.server.stdio, mvc.remote.push, mvc.remote.transports.ssh; print(*sys.modules)"
)


def test_a_start_imports_only_what_a_question_needs() -> None:
    """At both ends of ssh the rest is imported while the other end is at work."""
    line = [sys.executable, "-c", IMPORTED]
    modules = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()
    late = {
        "numpy",
        "urllib3",
        "mvc.remote.receiving.receiver",
        "mvc.remote.sending.sender",
        "mvc.maintenance.gc",
    }
    assert late.isdisjoint(modules)


@pytest.mark.parametrize(
    "forged",
    [
        b'{"identity":"AAAA","place":[1e400,""]}',
        b'{"identity":"AAAA","place":[999999999999999999999999,""]}',
        b'{"identity":"AAAA","place":[-1,""]}',
        b'{"identity":"AAAA","place":[1,"",-99999999999999999999]}',
        b'{"identity":"","place":[1,""],"kept":["AAAA"]}',
        b"[" * 100_000,
    ],
)
def test_a_forged_place_is_a_lost_one(repo: Repository, tmp_path: Path, forged: bytes) -> None:
    Repository.init(tmp_path / "server", bare=True).close()
    repo.commit({"w": np.zeros(3)})
    repo.remotes.add("origin", tmp_path / "server")
    repo.push()
    for name in ("place", "pushed"):
        (repo.root / ".mvc/remotes/origin" / name).write_bytes(forged)
    assert not repo.fetch().versions
    assert not repo.push().versions
