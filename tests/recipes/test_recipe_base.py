"""Which version a recipe trains, for figures: as the reader of recipes says, or unknown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import IoFailed
from mvc.io.files import FileSystem
from mvc.names import RECIPE
from mvc.recipes.recipe import recipe_base
from mvc.repo import attached
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import Change, CommitOptions, CommitRequest
from tests.recipes.by_hand import PATH, trained


def test_the_base_is_what_a_sound_recipe_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repository.init(tmp_path / "repo")
    base = repo.commit({"w": np.zeros(4)}).id
    made = trained(repo.context, lambda _: {"w": np.ones(4)}, {}, base)
    assert (recipe_base(repo.context, made), recipe_base(repo.context, base)) == (base, None)
    text = json.loads(attached.read(repo.context, made, RECIPE))
    forged = commit(
        repo.context,
        CommitRequest(
            [Change.of(PATH, repo.checkout(made), cached=False)],
            attachments={RECIPE: json.dumps(text | {"unknown": 1}).encode()},
            needs=[base],
            options=CommitOptions(allow_empty=True),
        ),
    ).id
    assert recipe_base(repo.context, forged) is None  # no reader of recipes takes it

    def fails(*_: object, **__: object) -> None:
        raise IoFailed("the disk is gone")

    with Repository.open(repo.root) as again:
        monkeypatch.setattr(FileSystem, "open_read", fails)
        with pytest.raises(IoFailed):
            recipe_base(again.context, made)
