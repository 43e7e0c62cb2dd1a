"""IDX folders, JSON lines, digits: read as they are, refused by name where they are not."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from mvc.errors import BadModelFile, UnknownPath, WrongUsage
from reproduce import data as reading
from reproduce.data import LENGTH, load_data, pick_classes, rows_of, words_of


def idx_bytes(array):
    head = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(folder, count=6, packed=False, prefix="train"):
    images = np.arange(count * 12).reshape(count, 3, 4) % 256
    labels = np.arange(count) % 3 + 5
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        data = idx_bytes(array)
        path = folder / f"{prefix}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    return images, labels


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_idx_folder(tmp_path, packed):
    images, _ = write_idx(tmp_path, packed=packed)
    write_idx(tmp_path, prefix="t10k")
    data = load_data(tmp_path)
    assert data.kind == "images"
    assert data.name == tmp_path.name
    assert np.array_equal(data.inputs, images)
    assert data.classes == ("5", "6", "7")
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.counts == (2, 2, 2)


def test_idx_without_the_word_train(tmp_path):
    write_idx(tmp_path, prefix="a")
    write_idx(tmp_path, prefix="b")
    assert len(load_data(tmp_path).labels) == 12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "says 72 bytes, but has 71"),
        (lambda data: data + b"x", "says 72 bytes, but has 73"),
        (lambda data: b"\0\0\x0d\x03" + data[4:], "no IDX file of bytes with 3 dimensions"),
        (lambda data: data[:7], "no IDX file"),
        (lambda data: gzip.compress(data)[:-9], "cut off"),
        (lambda data: b"\x1f\x8b" + data, "no sound gzip file"),
        (lambda data: data[:4] + b"\xff" * 12, "says"),
    ],
    ids=["short", "long", "type", "header", "cut", "gzip", "sizes"],
)
def test_bad_idx(tmp_path, change, said):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadModelFile, match=said):
        load_data(tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_FILE", 5000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(10_000)))
    with pytest.raises(BadModelFile, match="unpacks to more than 5000 bytes"):
        reading.unpacked(path)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(UnknownPath, match="there is no"):
        load_data(tmp_path / "nowhere")
    with pytest.raises(UnknownPath, match="0 IDX files of images and 0 of labels"):
        load_data(tmp_path)
    write_idx(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(5)))
    with pytest.raises(BadModelFile, match="has 6 images, its labels are 5"):
        load_data(tmp_path)


def write_lines(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_json_lines(tmp_path):
    path = tmp_path / "texts.jsonl"
    write_lines(
        path,
        [
            {"kind": "b", "title": "Fast, fast", "body": "cars"},
            {"kind": "a", "title": "Slow", "body": "cars!"},
            {"kind": "a", "title": "fast", "body": "food"},
        ],
    )
    data = load_data(path, label_field="kind", text_fields=("title", "body"))
    assert (data.name, data.kind, data.classes) == ("texts", "texts", ("a", "b"))
    assert data.labels.tolist() == [1, 0, 0]
    assert data.inputs.shape == (3, LENGTH)
    # 'fast' occurs most often; of equally frequent words the one that came first counts first.
    assert data.inputs[0].tolist()[-4:] == [0, 1, 1, 2]
    assert data.inputs[1].tolist()[-3:] == [0, 3, 2]
    named = load_data(path, label_field="kind", text_fields=("body",), classes=("b", "a"))
    assert named.classes == ("b", "a")
    assert named.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"label": "a"}', "[" * 100_000])
def test_bad_lines_are_named(tmp_path, line):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"label": "a", "text": "b"}\n' + line)
    with pytest.raises(BadModelFile, match="line 2: no JSON object with label, text"):
        load_data(path)


def test_not_utf8(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadModelFile, match="is not UTF-8"):
        load_data(path)


def test_classes_are_the_largest_topics():
    sizes = {f"topic{n}": n + 1 for n in range(12)} | {"libs": 90, "doc": 80}
    labels = [name for name, size in sizes.items() for _ in range(size)]
    assert pick_classes(labels) == tuple(f"topic{n}" for n in range(11, 1, -1))
    assert pick_classes(["b", "a", "b", "a"]) == ("a", "b")
    with pytest.raises(WrongUsage, match="no text has the label z"):
        pick_classes(labels, ("topic1", "z"))
    with pytest.raises(WrongUsage, match="at least two labels"):
        pick_classes(["a", "a"])


def test_words():
    assert words_of('A "b-c" (d\'e)\tF.\n1,000') == ["a", "b", "c", "d'e", "f", "1", "000"]


def test_long_texts_keep_their_end():
    words = [f"w{n}" for n in range(150)]
    row = rows_of([" ".join(words)])[0]
    assert row.tolist() == list(range(51, 151))


def test_digits():
    data = load_data()
    assert data.inputs.shape == (1797, 8, 8)
    assert (data.name, data.brightest, int(data.inputs.max())) == ("digits", 16, 16)
    assert data.counts == (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
