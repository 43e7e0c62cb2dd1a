from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from mvc.errors import BadModelFile, UnknownPath
from reproduce.rework.ratings import load_ratings

TEXT = (
    'movieId,title,userId,rating\n31,Dangerous Minds,1,2.5\n7,"A, B",2,4\n31,Dangerous Minds,9,5\n'
)


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())])
def test_a_file(tmp_path, pack):
    file = tmp_path / "films.csv"
    file.write_bytes(pack(TEXT))
    found = load_ratings(file)
    assert found.name == "films"
    assert found.users.tolist() == [0, 1, 2]
    assert found.items[0] == found.items[2] != found.items[1]
    assert found.values.tolist() == [2.5, 4, 5]


def test_without_a_file():
    one, other = load_ratings(), load_ratings()
    assert len(one.values) == 20_000
    assert np.array_equal(one.values, other.values)
    assert one.values.min() >= 0.5 and one.values.max() <= 5


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", TEXT + "5,x,3,inf\n", TEXT + "5,x,3,good\n", "\xff"]
)
def test_no_ratings(tmp_path, text):
    file = tmp_path / "films.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadModelFile, match=r"films\.csv is no file of ratings"):
        load_ratings(file)


def test_no_file():
    with pytest.raises(UnknownPath, match=r"there is no nowhere\.csv"):
        load_ratings(Path("nowhere.csv"))
