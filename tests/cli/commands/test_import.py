from __future__ import annotations

from mvc.api.repository import Repository


def test_quiet_says_nothing(mvc, tmp_path) -> None:
    mvc.write(1, "runs/a.safetensors")
    result = mvc("-q", "import", mvc.folder / "runs")
    assert (result.out, result.err) == ("", "")


def test_an_interruption_says_what_was_kept(mvc, monkeypatch) -> None:
    for i in range(3):
        mvc.write(i, f"runs/{i}.safetensors")
    whole, kept = Repository.import_checkpoints, []

    def interrupted(self, sources, *, taken, **options):
        def then(version):
            taken(version)
            kept.append(version)
            if len(kept) == 2:
                raise KeyboardInterrupt

        return whole(self, sources, taken=then, **options)

    monkeypatch.setattr(Repository, "import_checkpoints", interrupted)
    err = mvc("import", mvc.folder / "runs", code=130).err
    assert "2 versions imported so far, and kept; the same command again goes on" in err
    monkeypatch.undo()
    monkeypatch.chdir(mvc.folder)
    assert "1 version imported" in mvc("import", mvc.folder / "runs").out
