from __future__ import annotations

import numpy as np


def test_the_tree(mvc) -> None:
    first = mvc.commit(0)
    for value in range(1, 6):
        mvc.commit(value)
    mvc("deploy", "HEAD", "prod")
    mvc("switch", "-c", "side", "HEAD~5")
    mvc.commit(9, **{"head.weight": np.ones((2, 2))})
    lines = mvc("family").out.splitlines()
    assert lines[0] == f"{first[:10]}  base model model.safetensors  value 0"
    assert lines[1] == "├─ … 4 fine-tuned versions"
    assert lines[2].startswith("│  ") and lines[2].endswith(" (main) [prod]  value 5")
    assert lines[3].startswith("└─ ") and "extended (HEAD, side)  value 9" in lines[3]
    assert len(mvc("family", "-v").out.splitlines()) == 7
    assert len(mvc("family", "side").out.splitlines()) == 1
    mvc("family", "nowhere", code=3)


def test_as_a_picture(mvc) -> None:
    mvc.commit(0)
    assert mvc("family", "-o", "f.svg").out == ""
    assert (mvc.folder / "f.svg").read_text().startswith("<svg ")
    assert "f.svg exists already" in mvc("family", "-o", "f.svg", code=3).err
    mvc("family", "-o", "f.svg", "-f")
    assert "as .svg" in mvc("family", "-o", "f.png", code=2).err
