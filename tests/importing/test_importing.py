import json
import os
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from mvc.api import Repository
from mvc.errors import InvalidTime, MvcWarning, RefConflict, UnknownPath, WrongUsage
from mvc.importing.checkpoints import Imported, import_checkpoints
from mvc.importing.finding import Checkpoint, find_histories
from mvc.importing.metrics import MOST_BYTES, metrics_of
from mvc.system import FileSystem
from tests.repo.working import write_model

SECOND = 10**9
FS = FileSystem()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def put(path: Path, seed: int, seconds: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_model(path, seed=seed)
    os.utime(path, ns=(seconds * SECOND, seconds * SECOND))
    return path


def take(repo: Repository, *sources: Path, **options) -> list[Imported]:
    return import_checkpoints(repo, sources, **options)


def find(*sources: Path, time: str = "mtime", path: str | None = None) -> list[Checkpoint]:
    histories = find_histories(FS, sources, time, path)
    return [checkpoint for history in histories for checkpoint in history.checkpoints]


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
    assert all(i.is_new and i.raw_bytes and i.stored_bytes for i in found)
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
    assert [i.is_new for i in first] == [True, False, True, False]
    assert first[1].commit == first[0].commit
    # The same state was deployed twice, at two moments.
    assert len(repo.deployments("prod")) == 4
    again = take(repo, run, deploy="prod")
    assert [i.is_new for i in again] == [False] * 4
    assert len(repo.deployments("prod")) == 4
    assert len(list(repo.log())) == 2
    put(run / "e9.safetensors", 9, 1_700_000_009)
    assert [i.is_new for i in take(repo, run)] == [False] * 4 + [True]


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


def test_digits_that_are_no_decimals_are_letters(run: Path) -> None:
    for name in ("2²3", "1²3", "10²3"):
        put(run / f"{name}.safetensors", 0, 50)
    assert [name.partition("²")[0] for name in names(find(run))] == ["1", "2", "10"]


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
    with pytest.raises(WrongUsage, match="has no year"):
        find(run, time=f"name:{form}")


# -- runs ------------------------------------------------------------------------------------


def trained(folder: Path, steps: range, first: int = 1_700_000_000, *, whole: bool = False) -> Path:
    """What a Trainer leaves: ``checkpoint-N``, its own state, and with ``whole`` its result."""
    for step in steps:
        place = folder / f"checkpoint-{step}"
        put(place / "model.safetensors", first + step, first + step)
        logged = [{"step": n, "loss": 1 / n, "note": "text"} for n in range(1, step + 1)]
        state = {"global_step": step, "log_history": [*logged, {"step": step, "eval_acc": 0.5}]}
        for name, text in (("config.json", "{}"), ("trainer_state.json", json.dumps(state))):
            (place / name).write_text(text)
            os.utime(place / name, (first, first))
    if whole:
        put(folder / "model.safetensors", first, first + 1000)
        (folder / "config.json").write_text("{}")
        os.utime(folder / "config.json", (first, first))
    (folder / "runs").mkdir()
    (folder / "runs" / "events.log").write_text("of a board")
    return folder


def messages(repo: Repository, rev: str = "HEAD") -> list[str]:
    return [entry.commit.message.removeprefix("import ") for entry in repo.log(rev)][::-1]


def test_runs_become_branches(repo: Repository, run: Path) -> None:
    """60 checkpoints are 60 versions, each with its own files, and one operation to undo."""
    trained(run / "lr-1", range(9, 12), whole=True)
    trained(run / "group" / "a b", range(2, 4), 1_600_000_000)
    left_out: list[Path] = []
    found = take(repo, run, deploy="prod", left_out=left_out)
    assert {i.branch: i.is_new for i in found} == {"lr-1": True, "group/a-b": True}
    assert left_out == [run / "group" / "a b" / "runs", run / "lr-1" / "runs"]
    assert messages(repo, "lr-1") == ["checkpoint-9", "checkpoint-10", "checkpoint-11", "lr-1"]
    assert messages(repo, "group/a-b") == ["checkpoint-2", "checkpoint-3"]
    files = ["config.json", "model.safetensors", "trainer_state.json"]
    assert [sorted(repo.manifest(e.id).by_path) for e in repo.log("lr-1")] == [files[:2]] + [
        files
    ] * 3
    versions = [entry.commit for entry in repo.log("lr-1")]
    assert {version.run for version in versions} == {"lr-1"}
    assert versions[1].metrics == {"step": 11, "loss": 1 / 11, "eval_acc": 0.5}
    assert repo.head().branch == "lr-1"  # the newest: there was nothing before
    assert repo.live("prod", at=1_600_000_002 * SECOND).commit == repo.find("group/a-b~1")

    undone = repo.undo()
    assert [d.commit for d in undone.deployments] == [repo.live("prod").commit]
    assert repo.refs() == [] and repo.head().branch == "main"
    again = take(repo, run, deploy="prod")  # what was committed is there still
    assert [i.commit for i in again] == [i.commit for i in found]
    assert not any(i.is_new for i in again) and len(repo.deployments("prod")) == 6
    assert messages(repo, "group/a-b") == ["checkpoint-2", "checkpoint-3"]
    assert [i.is_new for i in take(repo, run)] == [False] * 6


def test_a_run_by_itself_goes_onto_the_current_branch(repo: Repository, run: Path) -> None:
    trained(run / "a", range(1, 3))
    take(repo, run / "a")
    assert repo.head().branch == "main" and repo.version().run == "a"
    assert messages(repo) == ["checkpoint-1", "checkpoint-2"]
    trained(run / "b", range(1, 2), 1_800_000_000)
    take(repo, run / "a", run / "b")  # two are two branches
    assert messages(repo) == ["checkpoint-1", "checkpoint-2"] and repo.head().branch == "main"
    assert messages(repo, "b") == ["checkpoint-1"]


def test_checkpoints_that_are_files(repo: Repository, run: Path) -> None:
    folder = run / "version_0" / "checkpoints"
    for epoch in range(3):
        name = f"epoch={epoch}-step={10 * epoch}-val_loss=0.{9 - epoch}.ckpt"
        put(folder / name, epoch, 1_700_000_000 + epoch)
    put(run / "encoder" / "part-1.pt", 7, 1_700_000_000)
    put(run / "encoder" / "part-2.pt", 8, 1_700_000_000)
    take(repo, run)
    assert {branch.name for branch in repo.refs()} == {"version_0", "main"}
    assert len(messages(repo, "version_0")) == 3
    assert repo.version("version_0").metrics == {"epoch": 2, "step": 20, "val_loss": 0.7}
    assert {*repo.manifest("main").by_path} == {"part-1.pt", "part-2.pt"}


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("checkpoint-500.pt", {"step": 500}),
        ("global_step1000.pt", {"step": 1000}),
        ("model_epoch3_acc0.91.pt", {"epoch": 3, "acc": 0.91}),
        ("m-val_loss-1e-3.pt", {"val_loss": 1e-3}),
        ("a=1-lr=1e999.pt", {"a": 1}),
        ("resnet50-20260102.pt", {}),
        ("step7b.pt", {}),
    ],
)
def test_metrics_in_names(
    repo: Repository, run: Path, name: str, metrics: dict[str, float]
) -> None:
    put(run / name, 1, 5)
    take(repo, run)
    assert repo.version().metrics == metrics


@pytest.mark.parametrize(
    "state",
    [
        "no json", "[" * 100_000, "[]", '{"log_history": 3, "global_step": "x"}',
        '{"log_history": [[], {"loss": "a", "": 1, "x\\u0000": 2, "big": 1e999, "t": true}]}',
    ],
)  # fmt: skip
def test_a_strange_state_of_a_trainer_gives_no_metrics(
    repo: Repository, run: Path, state: str
) -> None:
    put(run / "model.safetensors", 1, 5)
    (run / "trainer_state.json").write_text(state)
    take(repo, run)
    assert repo.version().metrics == {}


def test_losses_that_are_no_numbers_hide_no_others(repo: Repository, run: Path) -> None:
    """Python writes them as no JSON."""
    put(run / "model.safetensors", 1, 5)
    logged = [{"loss": 0.5}, {"loss": float("nan"), "norm": -float("inf"), "acc": 1, "l": [1]}]
    state = {"global_step": 7, "log_history": logged, "best": float("inf")}
    (run / "trainer_state.json").write_text(json.dumps(state))
    take(repo, run)
    assert repo.version().metrics == {"step": 7, "acc": 1, "loss": 0.5}


def test_of_a_state_only_the_log_becomes_objects(repo: Repository, run: Path) -> None:
    put(run / "model.safetensors", 1, 5)
    state = '{"other": [%s[]], "global_step": 7}' % ("[]," * (3 << 20))
    (run / "trainer_state.json").write_text(state)
    (checkpoint,) = find(run)
    tracemalloc.start()
    try:
        assert metrics_of(FS, checkpoint, []) == {"step": 7}
        assert tracemalloc.get_traced_memory()[1] < 4 * len(state)
    finally:
        tracemalloc.stop()


def test_a_state_that_is_too_long_is_not_read(repo: Repository, run: Path) -> None:
    for step in (1, 2):
        put(run / f"checkpoint-{step}" / "model.safetensors", step, step)
        state = run / f"checkpoint-{step}" / "trainer_state.json"
        state.write_text('{"log_history": [{"loss": 1}]}' + " " * MOST_BYTES)
    with pytest.warns(MvcWarning, match=r"checkpoint-1/.* and 1 more: longer") as told:
        take(repo, run)
    assert len(told) == 1
    assert repo.version().metrics == {"step": 2}


# -- links -----------------------------------------------------------------------------------


def find_with_links(*sources: Path) -> tuple[dict[str, list[str]], list[Path]]:
    """The sources of each run's versions, and what is left out."""
    left_out: list[Path] = []
    found = find_histories(FS, sources, "mtime", None, left_out=left_out)
    return {history.run: names([*history.checkpoints]) for history in found}, left_out


def test_a_folder_that_contains_itself_by_many_links(run: Path) -> None:
    put(run / "model.pt", 0, 5)
    for name in "xyz":
        (run / name).symlink_to(".")
    assert find_with_links(run) == ({"": ["model.pt"]}, [run / name for name in "xyz"])


def test_runs_with_links_to_the_folder_above(run: Path) -> None:
    runs = [trained(run / name, range(1, 3), whole=True) for name in "abcd"]
    for folder in runs:
        (folder / "parent").symlink_to("..")
        (folder / "checkpoint-1" / "parent").symlink_to("../..")
    found, left_out = find_with_links(run)
    assert found == {name: ["checkpoint-1", "checkpoint-2", name] for name in "abcd"}
    places = ("checkpoint-1/parent", "parent", "runs")
    assert left_out == [folder / place for folder in runs for place in places]
    for checkpoint in find(run / "a"):
        assert len(checkpoint.files) < 4 and not any("/" in name for name in checkpoint.files)


def test_links_to_what_is_newest_are_no_more_versions(repo: Repository, run: Path) -> None:
    trained(run / "a", range(1, 4))
    (run / "a" / "last").symlink_to("checkpoint-3")
    (run / "a" / "checkpoint-best").symlink_to("checkpoint-2")
    (run / "latest").symlink_to("a")
    found, left_out = find_with_links(run)
    assert found == {"a": ["checkpoint-1", "checkpoint-2", "checkpoint-3"]}
    below = [run / "a" / name for name in ("checkpoint-best", "last", "runs")]
    assert left_out == [run / "latest", *below]
    take(repo, run)
    assert [branch.name for branch in repo.refs()] == ["a"]


def test_links_that_are_named_are_followed(run: Path) -> None:
    real = trained(run / "a", range(1, 3))
    link = run / "latest"
    link.symlink_to("a")
    versions = ["checkpoint-1", "checkpoint-2"]
    assert find_with_links(link)[0] == {"a": versions}
    assert find_with_links(link, real, link, real)[0] == {"a": versions}
    (real / "last").symlink_to("checkpoint-2")
    assert names(find(real / "last")) == ["last"]
    assert names(find(real / "last", real / "checkpoint-2")) == ["checkpoint-2"]


def test_a_folder_that_is_one_version_has_no_folders_by_links(run: Path) -> None:
    other = put(run.parent / "blobs" / "0123", 1, 5)
    put(run / "trainer_state.json", 0, 5)
    (run / "inside").mkdir()
    (run / "inside" / "model.pt").symlink_to(other)
    (run / "inside" / "blobs").symlink_to(other.parent)
    (checkpoint,) = find(run)
    assert set(checkpoint.files) == {"inside/model.pt", "trainer_state.json"}
    assert find_with_links(run)[1] == [run / "inside" / "blobs"]


def test_links_to_files_are_followed(run: Path) -> None:
    put(run.parent / "blob", 1, 5)
    (run / "model.pt").symlink_to("../blob")
    assert names(find(run)) == ["model.pt"]
    (run / "gone.pt").symlink_to("../gone")
    with pytest.raises(UnknownPath, match="target does not exist"):
        find(run)


def test_an_import_that_was_killed_goes_on(
    repo: Repository, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No branch leads to its versions yet; the next import makes the same ones."""
    trained(run, range(1, 5))
    kept: list[Imported] = []

    def die(imported: Imported) -> None:
        kept.append(imported)
        if len(kept) == 2:
            raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Repository, "advance", lambda *_, **__: die(kept[0]))
        take(repo, run, deploy="prod", on_imported=die)
    assert repo.refs() == []
    again = take(repo, run, deploy="prod")
    assert [i.is_new for i in again] == [False, False, True, True]
    assert [i.commit for i in again[:2]] == [i.commit for i in kept[:2]]
    assert len(messages(repo)) == len(repo.deployments("prod")) == 4
    assert repo.storage.fsck(full=True).sound


def test_an_interrupted_import_keeps_what_it_has(repo: Repository, run: Path) -> None:
    trained(run, range(1, 4))

    def stop(_: Imported) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(repo, run, on_imported=stop)
    assert messages(repo) == ["checkpoint-1"]


def test_a_branch_that_moves_meanwhile_stays(repo: Repository, run: Path) -> None:
    trained(run, range(1, 3))

    def meanwhile(_: Imported) -> None:
        if not repo.refs():
            repo.commit({"w": np.ones(3)}, message="mine")

    with pytest.raises(RefConflict, match="main has moved"):
        take(repo, run, on_imported=meanwhile)
    assert messages(repo) == ["mine"]
    take(repo, run)
    assert messages(repo) == ["mine", "checkpoint-1", "checkpoint-2"]


def test_a_run_with_the_name_of_a_tag_is_refused(repo: Repository, run: Path) -> None:
    repo.commit({"w": np.ones(3)})
    repo.tag("a")
    trained(run / "a", range(1, 2))
    with pytest.raises(RefConflict, match="the run a would be a branch"):
        take(repo, run)


def test_what_was_undone_is_collected_and_imported_again(repo: Repository, run: Path) -> None:
    trained(run, range(1, 5))
    first = take(repo, run)
    repo.undo()
    assert {*repo.storage.gc(grace="0").commits} == {imported.commit for imported in first}
    again = take(repo, run)
    assert all(imported.is_new for imported in again)
    assert [i.commit for i in again] == [i.commit for i in first]
    assert repo.storage.fsck(full=True).sound
