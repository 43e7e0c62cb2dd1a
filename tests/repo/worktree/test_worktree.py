import os
import unicodedata
from pathlib import Path

import pytest

from mvc.errors import InvalidName, SourceChanged, UnknownPath
from mvc.io.files import TEMPORARY, FileSystem
from mvc.repo.handle import Handle
from mvc.repo.worktree import worktree
from tests.repo.working import new_context, open_handle, write_model

ROOT = Path("/r/models")


@pytest.mark.parametrize(
    ("path", "cwd", "name"),
    [
        ("a.pt", "/r/models", "a.pt"),
        ("a.pt", "/r/models/sub/deep", "sub/deep/a.pt"),
        ("../a.pt", "/r/models/sub", "a.pt"),
        ("./x/./a.pt", "/r/models", "x/a.pt"),
        ("/r/models/x/a.pt", "/elsewhere", "x/a.pt"),
        (".", "/r/models", ""),
        ("models/a.pt", "/r", "a.pt"),
    ],
)
def test_names(path: str, cwd: str, name: str) -> None:
    assert worktree.tracked_name(ROOT, path, Path(cwd)) == name


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "/r/modelsx/a", ".mvc/journal", "a\nb"])
def test_refused_names(path: str) -> None:
    with pytest.raises(InvalidName):
        worktree.tracked_name(ROOT, path, ROOT)


def test_names_are_normalised() -> None:
    decomposed = unicodedata.normalize("NFD", "é.pt")
    assert worktree.tracked_name(ROOT, decomposed, ROOT) == "é.pt"


@pytest.fixture
def context(tmp_path: Path) -> Handle:
    return new_context(tmp_path / "models")


def touch(context: Handle, *names: str) -> None:
    for name in names:
        path = context.store.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def expand(context: Handle, *paths: str, cwd: Path | None = None) -> list[str]:
    return worktree.expand(context.store, paths, cwd or context.store.root, {})[0]


def test_a_folder_means_its_files(context: Handle) -> None:
    touch(context, "b.pt", "a.pt", "sub/c.pt", "sub/.git/config", f"sub/{TEMPORARY}12", "no.tmp")
    touch(context, "sub/logs/x", "sub/keep/logs/x")
    (context.store.root / ".mvcignore").write_text("*.tmp\n")
    (context.store.root / "sub" / ".mvcignore").write_text("/logs\n.mvcignore\n")
    names = [".mvcignore", "a.pt", "b.pt", "sub/c.pt", "sub/keep/logs/x"]
    assert expand(context, ".") == names
    assert expand(context, "sub", "a.pt", "a.pt") == ["a.pt", "sub/c.pt", "sub/keep/logs/x"]
    assert expand(context, "..", cwd=context.store.root / "sub" / "keep") == names[3:]


def test_a_file_is_not_taken_for_one_whose_name_has_another_unicode_form(context: Handle) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    touch(context, f"{composed}.txt", f"{decomposed}.txt", f"{composed}/a", f"{decomposed}/a", "b")
    if not os.path.samefile(context.store.root / composed, context.store.root / decomposed):
        for path in (f"{decomposed}.txt", f"{decomposed}/a", decomposed):
            with pytest.raises(InvalidName, match="have one name"):
                expand(context, path)
    (context.store.root / f"{decomposed}.txt").unlink(missing_ok=True)
    (context.store.root / f"{composed}.txt").write_bytes(b"")
    for path in (f"{composed}.txt", f"{decomposed}.txt"):
        assert expand(context, path) == [f"{composed}.txt"]


def test_a_named_file_is_taken_even_if_ignored(context: Handle) -> None:
    touch(context, "x.tmp", "out/y.tmp", "out/z")
    (context.store.root / ".mvcignore").write_text("*.tmp\nout/\n.mvcignore\n")
    assert expand(context, "x.tmp") == ["x.tmp"]
    assert expand(context, ".") == []
    assert expand(context, "out") == ["out/z"]


def test_links_are_followed_and_cycles_end(context: Handle, tmp_path: Path) -> None:
    touch(context, "a/one")
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "two").write_bytes(b"2")
    (context.store.root / "a" / "up").symlink_to(context.store.root)
    (context.store.root / "a" / "self").symlink_to(".")
    (context.store.root / "linked").symlink_to(outside)
    (context.store.root / "nowhere").symlink_to("absent")
    os.mkfifo(context.store.root / "pipe")
    assert expand(context, "linked/two") == ["linked/two"]
    for path in (".", "nowhere"):
        with pytest.raises(
            UnknownPath, match="nowhere is a symbolic link whose target does not exist"
        ):
            expand(context, path)
    (context.store.root / "nowhere").unlink()
    assert expand(context, ".") == ["a/one", "linked/two"]
    with pytest.raises(UnknownPath, match="pipe"):
        expand(context, "pipe")


def test_the_repository_may_be_named_by_way_of_a_link(context: Handle, tmp_path: Path) -> None:
    touch(context, "a.pt")
    (tmp_path / "alias").symlink_to(context.store.root)
    assert expand(context, tmp_path / "alias" / "a.pt") == ["a.pt"]
    assert expand(context, "a.pt", cwd=tmp_path / "alias") == ["a.pt"]


def test_what_is_missing_or_cannot_be_tracked_is_named(context: Handle) -> None:
    with pytest.raises(UnknownPath, match=r"gone\.pt"):
        expand(context, "gone.pt")
    touch(context, "bad\x07name")
    with pytest.raises(InvalidName, match="control") as caught:
        expand(context, ".")
    assert ".mvcignore" in (caught.value.hint or "")


def test_deep_folders(context: Handle) -> None:
    deep = context.store.root
    for _ in range(500):
        deep = deep / "d"
        if len(str(deep)) > 1500:
            break
        deep.mkdir()
    assert list(worktree.files_in(context.store.fs, context.store.root)) == []


def test_an_entry_is_the_files_content(context: Handle) -> None:
    write_model(context.store.root / "m.safetensors")
    write_model(context.store.root / "sub" / "n.safetensors")
    entry = worktree.entry_of(context.store, "m.safetensors")
    assert entry.path == "m.safetensors"
    assert [t.key for t in entry.tensors] == ["layer0.weight", "layer1.weight", "layer2.weight"]
    assert entry.content_id == worktree.entry_of(context.store, "sub/n.safetensors").content_id
    with pytest.raises(UnknownPath):
        worktree.entry_of(context.store, "absent")


def test_a_file_written_to_while_it_is_read_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "models"
    new_context(root).store.close()
    path = root / "m.safetensors"
    write_model(path)

    class Meddling(FileSystem):
        def open_read(self, path: Path, *, follow: bool = True):  # type: ignore[no-untyped-def]
            file = super().open_read(path, follow=follow)
            if path.name == "m.safetensors":
                file.identity()
                original = file.read_into

                def read_into(offset: int, buffer: memoryview) -> int:
                    os.utime(path, ns=(1, 1))
                    return original(offset, buffer)

                file.read_into = read_into  # type: ignore[method-assign]
            return file

    context = open_handle(root, fs=Meddling())
    with pytest.raises(SourceChanged, match=r"m\.safetensors"):
        worktree.entry_of(context.store, "m.safetensors")
