from __future__ import annotations


def test_as_a_picture(mvc) -> None:
    mvc.commit(0)
    assert mvc("log", "--tree", "-o", "f.svg").out == ""
    assert (mvc.folder / "f.svg").read_text().startswith("<svg ")
    assert "f.svg exists already" in mvc("log", "--tree", "-o", "f.svg", code=3).err
    mvc("log", "--tree", "-o", "f.svg", "-f")
    assert "as .svg" in mvc("log", "--tree", "-o", "f.png", code=2).err
