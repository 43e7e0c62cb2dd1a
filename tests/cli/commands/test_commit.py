from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch

from mvc.api.repository import Repository
from mvc.names import MODELS


def _write(mvc, name: str, data: bytes) -> None:
    path = mvc.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_an_author_of_two_lines_is_refused(mvc) -> None:
    mvc.write(1)
    for author in ("x\ny", ""):
        err = mvc("commit", "model.safetensors", "--author", author, code=3).err
        assert "author" in err


def test_a_model_whose_tensors_cannot_be_named_is_told(mvc) -> None:
    torch.save({"a\nb": torch.ones(3)}, mvc.folder / "odd.pt")
    torch.save({"a": torch.ones(3)}, mvc.folder / "usual.pt")
    made = mvc("commit", "odd.pt", "usual.pt")
    assert "stored as bytes (tensors not compared): odd.pt (a tensor's name contains" in made.err
    assert "usual.pt" not in made.err
    torch.save({"a\nb": torch.zeros(3)}, mvc.folder / "odd.pt")
    assert "odd.pt" not in mvc("commit", "-a").err  # once is enough


def test_opaque_models_are_named_in_a_line_for_each_reason(mvc) -> None:
    for n in range(60):
        torch.save({"a\nb": torch.ones(3)}, mvc.folder / f"c{n:02}.pt")
        _write(mvc, f"net/{n}.msgpack", b"\x81\xa1a\xc4\x01" + bytes([n]))
    for name in ("config.json", "README", "a.txt", "a.py", "tokenizer.model"):
        _write(mvc, f"net/{name}", b"{}")
    said = mvc("commit", ".").err.splitlines()
    assert said == [
        "stored as bytes (tensors not compared): c00.pt, c01.pt, c02.pt and 57 more (a tensor's "
        "name contains a control character: a\\nb; rename the tensor)",
        "stored as bytes (tensors not compared): net/0.msgpack, net/1.msgpack, net/10.msgpack and "
        "57 more (mvc does not know its format; save it with safetensors)",
    ]
    for n in range(9):  # each lacks another number of bytes
        torch.save({f"{'x' * n}\nb": torch.ones(3)}, mvc.folder / f"odd{n}.pt")
    said = mvc("commit", ".").err.splitlines()
    assert len(said) == 6 and said[-1] == "stored as bytes for 4 more reasons: 'mvc ls' lists them"


def test_a_folder_of_orbax_is_named_once(mvc) -> None:
    parts = ("_CHECKPOINT_METADATA", "default/_METADATA", "default/manifest.ocdbt",
             "default/d/0a", "default/ocdbt.process_0/manifest.ocdbt")  # fmt: skip
    for folder in ("ckpt/100", "ckpt/200"):
        for part in parts:
            _write(mvc, f"{folder}/{part}", b"\x28\xb5\x2f\xfd" + folder.encode())
    assert mvc("commit", "ckpt").err.splitlines() == [
        "stored as bytes (tensors not compared): ckpt/100/, ckpt/200/ (Orbax compresses arrays; "
        "export them with safetensors.flax.save_file)"
    ]
    _write(mvc, "manifest.ocdbt", b"x")
    assert "not compared): ./ (Orbax" in mvc("commit", "manifest.ocdbt").err


@pytest.mark.parametrize("suffix", MODELS)
def test_each_name_of_a_model_is_checked_at_commit(mvc, suffix) -> None:
    _write(mvc, f"m{suffix.upper()}", b"")
    if suffix == ".bin":
        _write(mvc, "m.BIN", b"<!doctype html>")
    assert "is not a valid model file" in mvc("commit", f"m{suffix.upper()}", code=3).err


def test_why_a_file_of_several_runs_of_numbers_is_opaque(mvc) -> None:
    numbers = np.random.default_rng(0).standard_normal(300_000)
    values = {"w": numbers.astype("f4").tobytes(), "t": "x", "v": numbers.tobytes()}
    (mvc.folder / "b.ckpt").write_bytes(pickle.dumps(values))
    said = mvc("commit", ".", "-m", "x").err
    assert "b.ckpt (it is a pickle that torch.save did not write" in said
    assert "b.ckpt  opaque, 3.60 MB: it is a pickle" in mvc("ls").out
    (mvc.folder / "cut.pt").write_bytes(b"PK\3\4 cut off")
    mvc("commit", "--opaque", "cut.pt", "-m", "y")
    assert "cut.pt" in mvc("deploy", "HEAD", "prod", code=None).err


def test_a_model_that_becomes_opaque_is_named(mvc) -> None:
    mvc.commit()
    model = mvc.folder / "model.safetensors"
    model.write_bytes(b"other")
    said = mvc("commit", "-a", "--opaque", "-m", "x").err
    assert "stored as bytes (tensors not compared): model.safetensors (" in said
    model.write_bytes(b"again")
    assert "opaque" not in mvc("commit", "-a", "--opaque", "-m", "y").err


def test_ls_has_the_reason_why_a_model_is_opaque(mvc) -> None:
    torch.save({"a\nb": torch.ones(3)}, mvc.folder / "c.pt")
    torch.save({"a": torch.ones(3)}, mvc.folder / "d.pt")
    _write(mvc, "b.msgpack", b"\x81\xa1a\xc4\x01b")
    _write(mvc, "config.json", b"{}")
    mvc("commit", ".")
    for name in ("c.pt", "b.msgpack"):
        (mvc.folder / name).unlink()  # it is read from the version
    listed = mvc("ls").out.splitlines()
    assert "b.msgpack  opaque, 6 B: mvc does not know its format" in listed
    assert "config.json  opaque, 2 B" in listed
    files = {file["path"]: file["why_opaque"] for file in mvc("ls", "--json").json["files"]}
    assert files == {
        "b.msgpack": "mvc does not know its format", "config.json": None, "d.pt": None,
        "c.pt": "a tensor's name contains a control character: a\\nb",
    }  # fmt: skip
    mvc("checkout", "-f", "HEAD")
    torch.save({"a\nb": torch.zeros(3)}, mvc.folder / "c.pt")
    _write(mvc, "config.json", b"[]")
    said = mvc("diff").out
    assert "c.pt  differs (stored as bytes: its tensors are not compared)" in said
    assert "config.json  differs\n" in said


def test_a_byte_order_mark_is_no_part_of_a_message(mvc, monkeypatch) -> None:
    mvc.write(1)
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffsubject\n\nbody\n"))
    mvc("commit", "model.safetensors", "-m", "-")
    (entry,) = mvc("log", "--json").json["commits"]
    assert entry["message"] == "subject\n\nbody\n"


def test_an_older_file_is_refused_and_named(mvc) -> None:
    with Repository.open(mvc.folder) as repo:
        repo.commit({"w": np.zeros(9)}, message="step 1")
        first = repo.find()
        repo.checkout(to=repo.root)
        repo.commit({"w": np.ones(9)}, message="step 2")
    assert f"modified:  model.safetensors (equals {first.short}, step 1)" in mvc("status").out
    said = mvc("commit", "-a", code=3).err.splitlines()
    assert said[0].startswith(
        f"mvc: model.safetensors has the content of version {first.short}, but HEAD is newer"
    )
    assert said[1].startswith("hint: 'mvc checkout HEAD model.safetensors' updates the file")
    mvc("commit", "model.safetensors")
    with Repository.open(mvc.folder) as repo:
        assert repo.manifest().root == repo.manifest(first).root
