"""A version of very many small files: the work for each does not grow with their number."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mvc
from tests.linear import assert_linear, lines_run


def small_files(folder: Path, count: int, shift: float = 0.0) -> None:
    """Files of a few bytes without tensors, and as many with tensors whose shapes differ."""
    for i in range(count // 2):
        (folder / f"{i}.txt").write_text(f"file {i}, {shift}")
        np.save(folder / f"{i}.npy", np.full((2, i + 1), i + shift, np.float32))


def test_commits_of_new_and_of_changed_files_are_linear(tmp_path: Path) -> None:
    def work(count: int) -> int:
        folder = tmp_path / str(count)
        with mvc.Repository.init(folder) as repo:
            small_files(folder, count)
            new = lines_run(lambda: repo.commit(folder))
            small_files(folder, count, shift=1.0)
            return new + lines_run(lambda: repo.commit(options=mvc.CommitOptions(all=True)))

    assert_linear(work)


def test_the_earlier_version_of_each_file_is_found_in_linear_time(tmp_path: Path) -> None:
    def work(count: int) -> int:
        folder = tmp_path / str(count)
        with mvc.Repository.init(folder) as repo:
            small_files(folder, count)
            first = repo.commit(folder)
            entries = repo.manifest().entries

            def ask() -> None:
                assert {repo.earlier(entry) for entry in entries} == {first.id}

            return lines_run(ask)

    assert_linear(work)
