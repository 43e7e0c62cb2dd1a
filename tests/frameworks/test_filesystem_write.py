"""Writing through fsspec: what becomes a commit, when, and what never does."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch

import mvc
from mvc.errors import BadModelFile, InvalidName, IoFailed, UnknownRevision, WrongUsage
from tests.frameworks.need import need

fsspec = need("fsspec")


pytestmark = pytest.mark.usefixtures("beside")


@pytest.fixture
def fs():
    return fsspec.filesystem("mvc")


def messages(repo, rev="HEAD"):
    return [entry.commit.message for entry in repo.log(rev)]


def paths(repo, rev="HEAD"):
    return sorted(repo.manifest(rev).by_path)


def waiting(repo):
    """What lies in the staging folder, locks aside."""
    folder = Path(repo.root, ".mvc/staging")
    return (
        sorted(p.name for p in folder.iterdir() if p.suffix != ".lock") if folder.exists() else []
    )


def test_a_file_is_a_commit(repo, fs):
    state = {"w": torch.randn(4, 5), "n": torch.tensor(2)}
    with fsspec.open("mvc://models@main/a/model.pt", "wb") as file:
        torch.save(state, file)
    with fsspec.open("mvc://models@main/model.safetensors", "wb") as file:
        file.write(safetensors.torch.save(state))
    with fsspec.open("mvc://models@main/notes.txt", "w") as file:
        file.write("déjà\n")
    fs.pipe_file("mvc://models/b", b"bytes")
    assert messages(repo) == [
        f"write {n}" for n in ("b", "notes.txt", "model.safetensors", "a/model.pt")
    ]
    manifest = repo.manifest()
    assert manifest.by_path["a/model.pt"].format == "torch"
    assert manifest.by_path["model.safetensors"].format == "safetensors"
    roots = {e.state.root for e in manifest.entries if e.tensors}
    assert len(roots) == 1  # the same state, whatever the file
    assert torch.equal(repo.checkout(path="a/model.pt")["w"], state["w"])
    assert fs.cat_file("mvc://models/notes.txt").decode() == "déjà\n"
    assert waiting(repo) == []


def test_the_same_bytes_again_are_no_version(repo, fs):
    for _ in range(2):
        fs.pipe_file("mvc://models/b", b"bytes")
    assert messages(repo) == ["write b"]


def test_seeking_while_writing(repo, fs):
    with fs.open("mvc://models/b", "wb") as file:
        file.write(b"0123456789")
        file.seek(2)
        file.write(b"xx")
        file.seek(-1, os.SEEK_END)
        file.write(b"yz")
        assert file.tell() == 11
        file.truncate(10)
    assert fs.cat_file("mvc://models/b") == b"01xx45678y"


@pytest.mark.parametrize("mode", ["wb", "w"])
@pytest.mark.parametrize("how", ["fsspec.open", "fs.open"])
def test_an_exception_keeps_nothing(repo, fs, how, mode):
    make = fsspec.open if how == "fsspec.open" else fs.open
    with pytest.raises(KeyError), make("mvc://models@main/b", mode) as file:
        file.write(b"half of it" if mode == "wb" else "half of it")
        raise KeyError
    assert not fs.exists("mvc://models/b")
    assert messages_of_empty(repo) == []
    assert waiting(repo) == []


def messages_of_empty(repo):
    return [] if repo.handle.store.snapshot.ref("heads/main") is None else messages(repo)


def test_saving_while_an_exception_is_handled(repo, fs):
    """An emergency checkpoint is written inside an ``except`` block and counts."""
    try:
        raise KeyError
    except KeyError:
        fs.pipe_file("mvc://models/emergency", b"x")
    assert messages(repo) == ["write emergency"]


def test_a_file_that_is_never_closed_is_not_kept(repo, fs):
    with pytest.warns(ResourceWarning, match="not closed"):
        fs.open("mvc://models/b", "wb").write(b"x")
        gc.collect()
    assert not fs.exists("mvc://models/b")


def test_exclusive_creation(repo, fs):
    with fs.open("mvc://models/b", "xb") as file:
        file.write(b"1")
    with pytest.raises(FileExistsError):
        fs.open("mvc://models/b", "xb")


def test_a_transaction_is_one_commit(repo, fs):
    fs.pipe_file("mvc://models/old", b"0")
    with fs.transaction:
        for i in range(3):
            with fs.open(f"mvc://models/f{i}", "wb") as file:
                file.write(bytes([i]))
        fs.pipe_file("mvc://models/gone", b"x")
        fs.rm("mvc://models/old")
        assert paths(repo) == ["old"]
    assert paths(repo) == ["f0", "f1", "f2", "gone"]
    assert messages(repo) == ["change 5 paths", "write old"]
    with pytest.raises(KeyError), fs.transaction:
        fs.pipe_file("mvc://models/f9", b"9")
        raise KeyError
    fs.pipe_file("mvc://models/after", b"a")
    assert paths(repo) == ["after", "f0", "f1", "f2", "gone"]


def test_in_a_transaction_the_last_change_of_a_path_counts(repo, fs):
    with fs.transaction:
        fs.pipe_file("mvc://models/a", b"1")
        fs.pipe_file("mvc://models/a", b"2")
        fs.pipe_file("mvc://models/b", b"1")
        with fs.open("mvc://models/never", "wb") as file:
            file.write(b"x")
            file.discard()
    assert (fs.cat_file("mvc://models/a"), paths(repo)) == (b"2", ["a", "b"])


def test_branches_are_written_without_being_current(repo, fs):
    fs.pipe_file("mvc://models/a", b"1")
    repo.branch("next")
    fs.pipe_file("mvc://models@next/b", b"2")
    fs.pipe_file("mvc://models@heads%2Fnext/b", b"3")
    assert paths(repo, "main") == ["a"]
    assert paths(repo, "next") == ["a", "b"]
    assert messages(repo, "next") == ["write b", "write b", "write a"]
    assert repo.status().branch == "main"
    with fs.transaction:  # one commit on each
        fs.pipe_file("mvc://models@main/c", b"1")
        fs.pipe_file("mvc://models@next/c", b"2")
    assert fs.cat_file("mvc://models@main/c") == b"1"
    assert fs.cat_file("mvc://models@next/c") == b"2"


def test_only_branches_are_written(repo, fs):
    fs.pipe_file("mvc://models/a", b"1")
    repo.tag("v1")
    for rev in ("v1", "HEAD~0", str(repo.find())[:10], "main@{now}"):
        for act in (lambda p: fs.pipe_file(p, b"x"), fs.rm, lambda p: fs.makedirs(f"{p}/d")):
            with pytest.raises(PermissionError, match="not a branch") as caught:
                act(f"mvc://models@{rev}/a")
            assert isinstance(caught.value, mvc.MvcError)
    with pytest.raises(UnknownRevision, match="no branch nowhere"):
        fs.pipe_file("mvc://models@nowhere/a", b"x")
    repo.checkout(str(repo.find()), force=True, to=repo.root)
    with pytest.raises(PermissionError, match="HEAD is detached"):
        fs.pipe_file("mvc://models/a", b"x")
    assert messages(repo, "main") == ["write a"]


def test_files_and_folders_keep_apart(repo, fs):
    fs.pipe_file("mvc://models/a/b", b"1")
    with pytest.raises(WrongUsage, match="a is a folder"):
        fs.pipe_file("mvc://models/a", b"1")
    with pytest.raises(WrongUsage, match="a/b is a file"):
        fs.pipe_file("mvc://models/a/b/c", b"1")
    with pytest.raises(InvalidName):
        fs.pipe_file("mvc://models/con", b"1")
    fs.pipe_file("mvc://models/x", b"1")
    for act in (
        lambda: fs.pipe_file("mvc://models@main", b"1"),
        lambda: fs.cp_file("mvc://models/x", "mvc://models@main"),
        lambda: fs.mv("mvc://models/x", "mvc://models@main"),
        lambda: fs.mv("mvc://models/a", "mvc://models@main/"),
        lambda: fs.mv("mvc://models/x", "mvc://models/a"),
    ):
        with pytest.raises(WrongUsage, match="a folder"):
            act()
    with pytest.raises(WrongUsage, match="new cannot be a file"), fs.transaction:
        fs.pipe_file("mvc://models/new", b"1")
        fs.pipe_file("mvc://models/new/deep/x", b"1")
    assert paths(repo) == ["a/b", "x"]
    fs.pipe_file("mvc://models/after", b"1")
    assert paths(repo) == ["a/b", "after", "x"]


def test_removing(repo, fs):
    with fs.transaction:
        for name in ("a/1", "a/2", "b", "c"):
            fs.pipe_file(f"mvc://models/{name}", b"x")
    fs.rm("mvc://models/b")
    with pytest.raises(IsADirectoryError):
        fs.rm("mvc://models/a")
    fs.rm("mvc://models/a", recursive=True)
    assert messages(repo)[:2] == ["remove a", "remove b"]
    assert paths(repo) == ["c"]
    assert fs.cat_file("mvc://models@HEAD~1/a/1") == b"x"
    with pytest.raises(FileNotFoundError):
        fs.rm("mvc://models/none")


def test_moving_keeps_the_tensors_and_needs_no_space(repo, fs):
    repo.commit({"deep": {"w": torch.randn(50, 50)}, "step": 3}, path="a/model.safetensors")
    fs.pipe_file("mvc://models/a/note", b"n")
    before = repo.manifest().by_path["a/model.safetensors"].content_id
    fs.mv("mvc://models/a", "mvc://models/b")
    assert paths(repo) == ["b/model.safetensors", "b/note"]
    assert repo.manifest().by_path["b/model.safetensors"].content_id == before
    assert repo.checkout(path="b/model.safetensors")["step"] == 3
    assert messages(repo)[0] == "move a to b"
    fs.mv("mvc://models/b/note", "mvc://models/note")
    assert paths(repo) == ["b/model.safetensors", "note"]
    with pytest.raises(FileNotFoundError):
        fs.mv("mvc://models/none", "mvc://models/x")


def test_moving_between_branches(repo, fs):
    fs.pipe_file("mvc://models/a", b"1")
    repo.branch("next")
    fs.mv("mvc://models@main/a", "mvc://models@next/b")
    assert (paths(repo, "main"), paths(repo, "next")) == ([], ["a", "b"])


def test_copying_brings_an_old_file_back(repo, fs, tmp_path):
    repo.commit({"w": torch.ones(3)}, path="m")
    fs.rm("mvc://models/m")
    fs.cp_file("mvc://models@HEAD~1/m", "mvc://models@main/again")
    assert torch.equal(repo.checkout(path="again")["w"], torch.ones(3))
    with mvc.Repository.init("other") as other:
        fs.cp_file("mvc://models/again", "mvc://other/m")
        assert other.manifest().by_path["m"].state.root == repo.manifest().root


def test_folders_are_put_and_fetched(repo, fs, tmp_path):
    for name in ("x/1", "x/deep/2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    with fs.transaction:
        fs.put(str(tmp_path / "x"), "mvc://models/put", recursive=True)
    assert paths(repo) == ["put/1", "put/deep/2"]
    fs.get("mvc://models/put", str(tmp_path / "back"), recursive=True)
    assert (tmp_path / "back/deep/2").read_text() == "x/deep/2"


def test_folders_exist_by_their_files(repo, fs):
    fs.makedirs("mvc://models/d", exist_ok=True)
    assert not fs.exists("mvc://models/d")
    fs.pipe_file("mvc://models/d/x", b"1")
    fs.mkdir("mvc://models/e")
    fs.makedirs("mvc://models/d", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("mvc://models/d")


def test_threads_each_get_their_commit(repo, fs):
    def write(i):
        fs.pipe_file(f"mvc://models/t{i}", bytes([i]) * 1000)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert paths(repo) == [f"t{i}" for i in range(6)]
    assert len(messages(repo)) == 6


def test_nobody_waits_for_another_thread_that_commits(repo, fs, monkeypatch):
    """Neither a reader, nor a child that is forked meanwhile, as workers of a DataLoader are."""
    fs.pipe_file("mvc://models/first", b"1")
    inside, go_on = threading.Event(), threading.Event()
    commit = mvc.Repository.commit

    def slow(*arguments, **options):
        inside.set()
        assert go_on.wait(60)
        return commit(*arguments, **options)

    monkeypatch.setattr(mvc.Repository, "commit", slow)
    writer = threading.Thread(target=fs.pipe_file, args=("mvc://models/second", b"2"))
    writer.start()
    try:
        assert inside.wait(60)
        found = []
        reader = threading.Thread(target=lambda: found.extend(fs.ls("mvc://models", detail=False)))
        reader.start()
        reader.join(20)
        assert [name.rpartition("/")[2] for name in found] == ["first"]
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(len(fs.ls("mvc://models", detail=False)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        go_on.set()
        writer.join()
    assert paths(repo) == ["first", "second"]


def test_a_killed_writer_leaves_nothing(repo):
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fsspec, time\n"
            "f = fsspec.open('mvc://models/b', 'wb').open()\n"
            "f.write(b'x' * 100000); f.flush(); print('written', flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "written\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert messages_of_empty(repo) == []
    assert waiting(repo) == []


def test_a_link_in_place_of_the_staging_folder(repo, fs, tmp_path):
    """A foreign repository must not make us write into, or clear, somebody's folder."""
    fs.pipe_file("mvc://models/a", b"1")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/x.lock").write_text("mine")
    Path(repo.root, ".mvc/staging").rmdir()
    Path(repo.root, ".mvc/staging").symlink_to(tmp_path / "victim")
    with pytest.raises(IoFailed, match="not a folder"):
        fs.open("mvc://models/b", "wb")
    assert [p.name for p in (tmp_path / "victim").iterdir()] == ["x.lock"]
    assert fs.cat_file("mvc://models/a") == b"1"


def test_a_folder_that_cannot_be_written(repo, fs, monkeypatch):
    fs.pipe_file("mvc://models/a", b"1")
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    folder = Path(repo.root, ".mvc/staging")
    folder.chmod(0o500)
    try:
        with pytest.raises(mvc.MvcError):
            fs.pipe_file("mvc://models/b", b"1")
        assert fs.cat_file("mvc://models/a") == b"1"
    finally:
        folder.chmod(0o700)


def test_a_model_file_that_is_cut_off_is_refused(repo, fs):
    """As ``mvc commit`` refuses it; nothing is committed."""
    whole = safetensors.torch.save({"w": torch.ones(64)})
    for name, data in (("t.safetensors", whole[:-1]), ("u.safetensors", b"12345")):
        with pytest.raises(BadModelFile, match=f"{name} is not a valid model file: it"):
            fs.pipe_file(f"mvc://models@main/{name}", data)
    assert repo.refs() == []
    assert waiting(repo) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_distributed_checkpoint_is_pointed_to_its_writer_and_reader(repo):
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.ones(2)}
    for act in (dcp.save, dcp.load):
        with pytest.raises((dcp.api.CheckpointException, AssertionError)) as caught:
            act(state, checkpoint_id="mvc://models@main/ck", no_dist=True)
        assert "use MvcWriter and MvcReader of mvc.frameworks.dcp" in str(caught.value)
    fs = fsspec.filesystem("mvc")
    for name in (".metadata", ".metadata.tmp", "__0_0.distcp", "__3.metadata"):
        with pytest.raises(WrongUsage, match="torch\\.distributed") as refused:
            fs.open(f"mvc://models@main/ck/{name}", "wb")
        assert "dcp.load(state, storage_reader=MvcReader(repo, rev))" in refused.value.hint
    assert repo.handle.store.snapshot.ref("heads/main") is None
