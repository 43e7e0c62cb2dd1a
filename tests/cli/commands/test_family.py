from __future__ import annotations


def test_as_a_picture(mvc) -> None:
    mvc.commit(0)
    assert mvc("family", "-o", "f.svg").out == ""
    assert (mvc.folder / "f.svg").read_text().startswith("<svg ")
    assert "f.svg exists already" in mvc("family", "-o", "f.svg", code=3).err
    mvc("family", "-o", "f.svg", "-f")
    assert "as .svg" in mvc("family", "-o", "f.png", code=2).err
