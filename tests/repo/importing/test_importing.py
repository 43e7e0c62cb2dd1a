import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import InvalidTime, UnknownPath, WrongUsage
from mvc.io.files import FileSystem
from mvc.repo.importing.importing import (
    Checkpoint,
    Imported,
    find_checkpoints,
    import_checkpoints,
)
from tests.repo.working import write_model

SECOND = 10**9
FS = FileSystem()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def put(path: Path, seed: int, seconds: int) -> Path:
    write_model(path, seed=seed)
    os.utime(path, ns=(seconds * SECOND, seconds * SECOND))
    return path


def take(repo: Repository, *sources: Path, **options) -> list[Imported]:
    return import_checkpoints(repo.context, sources, **options)


def find(*sources: Path, time: str = "mtime", path: str | None = None) -> list[Checkpoint]:
    return find_checkpoints(FS, sources, time, path)


def names(found: list[Checkpoint]) -> list[str]:
    return [c.source.name for c in found]


def test_files_become_versions_in_the_order_of_their_times(repo: Repository, run: Path) -> None:
    for i, seconds in enumerate([300, 100, 200]):
        put(run / f"epoch{i}.safetensors", i, 1_700_000_000 + seconds)
    (run / "log.txt").write_text("no model")
    found = take(repo, run, deploy="prod")
    assert [i.source.name for i in found] == [
        "epoch1.safetensors",
        "epoch2.safetensors",
        "epoch0.safetensors",
    ]
    assert all(i.kept and i.raw_bytes and i.stored_bytes for i in found)
    entries = list(repo.log())
    assert [e.id for e in entries] == [i.commit for i in reversed(found)]
    assert [e.commit.time_ns for e in entries] == [i.time_ns for i in reversed(found)]
    assert entries[0].commit.message == "import epoch0.safetensors"
    assert set(repo.manifest().by_path) == {"model.safetensors"}
    moment = 1_700_000_250 * SECOND
    assert repo.live("prod", at=moment).commit == found[1].commit
    for imported in found:
        out = run.parent / "out.safetensors"
        repo.checkout(str(imported.commit), to=out, force=True)
        assert out.read_bytes() == imported.source.read_bytes()


def test_import_can_be_repeated_and_continued(repo: Repository, run: Path) -> None:
    for i in range(4):
        put(run / f"e{i}.safetensors", i // 2, 1_700_000_000 + i)
    first = take(repo, run, deploy="prod")
    assert [i.kept for i in first] == [True, False, True, False]
    assert first[1].commit == first[0].commit
    # The same state was deployed twice, at two moments.
    assert len(repo.deployments("prod")) == 4
    again = take(repo, run, deploy="prod")
    assert [i.kept for i in again] == [False] * 4
    assert len(repo.deployments("prod")) == 4
    assert len(list(repo.log())) == 2
    put(run / "e9.safetensors", 9, 1_700_000_009)
    assert [i.kept for i in take(repo, run)] == [False] * 4 + [True]


def test_times_in_names(repo: Repository, run: Path) -> None:
    for i, name in enumerate(["20260102-030405.000250", "20260102-030405.000200"]):
        put(run / f"model-{name}.safetensors", i, 5)
    found = find(run, time="name:model-%Y%m%d-%H%M%S.%f.safetensors")
    local = datetime(2026, 1, 2, 3, 4, 5).astimezone()
    start = int(local.timestamp()) * SECOND
    assert [c.time_ns - start for c in found] == [200_000, 250_000]
    without = find(run, time="name:model-%Y%m%d-%H%M%S.%f")
    assert [c.time_ns for c in without] == [c.time_ns for c in found]


def test_a_zone_in_a_name(run: Path) -> None:
    put(run / "2026-07-01T12+0200.pt", 0, 5)
    (found,) = find(run, time="name:%Y-%m-%dT%H%z.pt")
    assert found.time_ns == int(datetime(2026, 7, 1, 10, tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ("name:%Y-%m-%d.pt", InvalidTime),
        ("name:model.pt", WrongUsage),
        ("ctime", WrongUsage),
        ("name:%Q", WrongUsage),
        ("name:%", WrongUsage),
        ("name:%Y%Y", WrongUsage),
        ("mtime:%Y", WrongUsage),
    ],
)
def test_bad_rules_for_times(run: Path, rule: str, error: type[Exception]) -> None:
    put(run / "model.pt", 0, 5)
    with pytest.raises(error):
        find(run, time=rule)


def test_folders_inside_are_versions_of_all_their_files(repo: Repository, run: Path) -> None:
    for step, extra in ((1000, "scheduler.pt"), (500, "optimizer.pt")):
        folder = run / f"checkpoint-{step}"
        put(folder / "model.safetensors", step, 1_700_000_000 + step)
        put(folder / extra, step + 1, 1_700_000_000)
        (folder / "config.json").write_text("{}")
        os.utime(folder / "config.json", (1_600_000_000, 1_600_000_000))
    (run / "runs").mkdir()
    (run / "runs" / "events.log").write_text("no model inside")
    put(run / "training_args.bin", 3, 5)
    found = take(repo, run)
    assert [i.source.name for i in found] == ["checkpoint-500", "checkpoint-1000"]
    assert found[0].time_ns == 1_700_000_500 * SECOND
    old, new = (set(repo.manifest(i.commit).by_path) for i in found)
    assert old == {"model.safetensors", "optimizer.pt", "config.json"}
    assert new == {"model.safetensors", "scheduler.pt", "config.json"}


@pytest.mark.parametrize(
    "inside",
    [
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ["a.pt", "b.pt", "model.safetensors.index.json"],
        ["model.safetensors", "optimizer.pt", "trainer_state.json"],
    ],
)
def test_a_folder_that_is_one_version_itself(run: Path, inside: list[str]) -> None:
    for name in inside:
        put(run / name, 0, 7)
    (found,) = find(run, path="big")
    assert set(found.files) == {f"big/{name}" for name in inside}
    assert found.size == sum((run / name).stat().st_size for name in inside)


def test_equal_times_go_by_name_as_people_count(run: Path) -> None:
    for n in (10, 9, 1):
        put(run / f"epoch{n}.pt", n, 50)
    assert names(find(run)) == ["epoch1.pt", "epoch9.pt", "epoch10.pt"]
    assert names(find(run / "epoch9.pt", run)) == ["epoch1.pt", "epoch9.pt", "epoch10.pt"]


def test_one_tracked_path(run: Path) -> None:
    put(run / "a.pth.tar", 0, 5)
    assert [set(c.files) for c in find(run)] == [{"model.pth.tar"}]
    put(run / "b.safetensors", 1, 6)
    with pytest.raises(WrongUsage, match="several formats"):
        find(run)
    assert [set(c.files) for c in find(run, path="nets/best.pt")] == [{"nets/best.pt"}] * 2


def test_nothing_to_import(repo: Repository, run: Path) -> None:
    with pytest.raises(UnknownPath, match="absent"):
        take(repo, run / "absent")
    with pytest.raises(WrongUsage, match="no model files"):
        take(repo, run)
    assert list(find(run)) == []


def test_nothing_is_committed_if_a_source_is_wrong(repo: Repository, run: Path) -> None:
    put(run / "2026-01-01.pt", 0, 5)
    put(run / "best.pt", 1, 6)
    with pytest.raises(InvalidTime, match=r"best\.pt"):
        take(repo, run, time="name:%Y-%m-%d.pt")
    assert repo.status().head is None


def test_progress(repo: Repository, run: Path) -> None:
    sizes = [put(run / f"{i}.safetensors", i, 10 + i).stat().st_size for i in range(3)]
    told: list[tuple[int, int, str]] = []
    callback: Callable[[int, int, str], None] = lambda *args: told.append(args)  # noqa: E731
    take(repo, run, message="mine", progress=callback)
    done = [d for d, _, _ in told]
    assert done == sorted(done)
    assert {total for _, total, _ in told} == {sum(sizes)}
    assert {e.commit.message for e in repo.log()} == {"mine"}


@pytest.mark.parametrize("form", ["%M%S.pt", "model-%H-%M.pt", "%m-%d.pt"])
def test_a_form_without_a_year_is_refused(run: Path, form: str) -> None:
    put(run / "1234.pt", 0, 0)
    with pytest.raises(WrongUsage, match="names no date"):
        find(run, time=f"name:{form}")
