"""MVCCheckpointIO under ModelCheckpoint: what was saved comes back, exactly."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frameworks.need import need

need("lightning", "lightning.pytorch")

from lightning.pytorch.callbacks import (  # noqa: E402
    EarlyStopping,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.plugins.io import AsyncCheckpointIO  # noqa: E402

import mvc  # noqa: E402
from mvc.errors import (  # noqa: E402
    InvalidName,
    MvcError,
    UnknownPath,
    UnsupportedTensor,
    WrongUsage,
)
from mvc.frameworks.lightning.callback import MVCCallback, MVCCheckpointIO  # noqa: E402
from tests.frameworks.lightning_runs import (  # noqa: E402
    Net,
    digest,
    existing,
    fit,
    same,
    validation,
)


class Spy(MVCCheckpointIO):
    """Remembers what it was given, as it was then."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.saved: dict[str, dict[str, Any]] = {}
        self.removed: list[str] = []

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, *more: Any, **opt: Any
    ) -> None:
        self.saved[str(path)] = deepcopy(checkpoint)
        super().save_checkpoint(checkpoint, path, *more, **opt)

    def remove_checkpoint(self, path: Any) -> None:
        self.removed.append(str(path))
        super().remove_checkpoint(path)


class Hyper(Net):
    def __init__(self, folder: Path = Path("/data"), sizes: Any = (1, {"a": None})) -> None:
        super().__init__()
        self.save_hyperparameters()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = {1: torch.tensor(float("nan")), "set": {3, 4}, (1, "a"): -0.0}


def run(folder: Path, *more: Any, plugin: Any = None, **options: Any) -> Any:
    """``options`` of ModelCheckpoint; a training of four epochs with validation."""
    saver = ModelCheckpoint(dirpath=folder / "ck", **options)
    plugin = Spy(existing(folder / "repo")) if plugin is None else plugin
    model, trainer = fit(
        saver, *more, validate=validation(), max_epochs=4,
        plugins=[plugin], enable_checkpointing=True, module=Hyper,
    )  # fmt: skip
    return plugin, saver, model, trainer


def files(folder: Path) -> set[str]:
    return {str(p) for p in (folder / "ck").rglob("*.ckpt")}


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "best-two": {"monitor": "val_loss", "save_top_k": 2},
    "best-and-last": {"monitor": "val_loss", "save_top_k": 1, "save_last": True},
    "link": {"monitor": "val_loss", "save_top_k": 2, "save_last": "link"},
    "steps": {"every_n_train_steps": 3, "save_top_k": -1},
    "weights": {"save_weights_only": True, "save_top_k": -1, "every_n_epochs": 2},
    "metric-in-name": {
        "monitor": "val_loss", "filename": "{epoch}/v{val_loss:.3f}", "save_top_k": -1
    },
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_model_checkpoint(tmp_path: Path, setting: str) -> None:
    spy, saver, _, _ = run(tmp_path, EarlyStopping("val_loss", 50), Timer(), **SETTINGS[setting])
    kept = [path for path in spy.saved if path not in spy.removed]
    assert kept
    assert all(os.path.exists(path) for path in kept)
    assert not any(os.path.exists(path) for path in spy.removed)
    links = {saver.last_model_path} if setting == "link" else set()
    assert files(tmp_path) == {*kept, *links}
    for path in kept:
        assert Path(path).stat().st_size < 400
        assert same(spy.load_checkpoint(path), spy.saved[path])
    assert same(spy.load_checkpoint(saver.best_model_path), spy.saved[saver.best_model_path])
    if setting == "link":
        target = os.path.realpath(saver.last_model_path)
        assert same(spy.load_checkpoint(saver.last_model_path), spy.saved[target])


def test_what_was_deleted_stays_in_the_history(tmp_path: Path) -> None:
    spy, _, _, _ = run(tmp_path, monitor="val_loss", save_top_k=1, mode="max")
    assert spy.removed
    gone = spy.removed[0]
    with pytest.raises(UnknownPath, match="no checkpoint at"):
        spy.load_checkpoint(gone)
    found = [e for e in spy.repo.log() if e.commit.message == f"checkpoint {Path(gone).name}"]
    assert same(spy.load_checkpoint(f"mvc:{found[0].id}"), spy.saved[gone])
    spy.save_checkpoint(spy.saved[gone], tmp_path / "ck" / "another.ckpt")
    names = [entry.path for entry in spy.repo.manifest().entries]
    assert not any(Path(gone).stem in name for name in names)
    assert spy.repo.storage.fsck().sound
    spy.remove_checkpoint(gone)  # a second time does nothing


def test_saved_again_after_it_was_deleted(tmp_path: Path) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path))
    path = tmp_path / "a.ckpt"
    for value in range(3):
        plugin.save_checkpoint({"state_dict": {"w": torch.full((3,), float(value))}}, path)
        assert plugin.load_checkpoint(path)["state_dict"]["w"][0] == value
        plugin.remove_checkpoint(path)
        assert not path.exists()
    plugin.save_checkpoint({"state_dict": {"w": torch.ones(1)}}, path)
    assert list(plugin.repo.manifest().by_path) == ["a.safetensors", "a.training.safetensors"]


@pytest.mark.parametrize("word", ["last", "best"])
def test_training_goes_on(tmp_path: Path, word: str) -> None:
    spy, saver, _, trainer = run(tmp_path, monitor="val_loss", save_last=True)
    path = saver.last_model_path if word == "last" else saver.best_model_path
    steps = spy.saved[path]["global_step"]
    again = ModelCheckpoint(dirpath=tmp_path / "ck", monitor="val_loss", save_last=True)
    rest, other = fit(
        again, module=Hyper, validate=validation(), max_epochs=5, first_seed=9,
        plugins=[MVCCheckpointIO(existing(tmp_path / "repo"))], enable_checkpointing=True,
        resume="last" if word == "last" else path,
    )  # fmt: skip
    assert other.global_step == 25
    assert len(rest.trace) == 25 - steps
    assert rest.trace
    if word == "best":
        (result,) = trainer.validate(Hyper(), validation(), ckpt_path=path, verbose=False)
        assert "val_loss" in result


def test_weights_only_are_not_enough_to_go_on(tmp_path: Path) -> None:
    spy, saver, model, _ = run(tmp_path, save_weights_only=True)
    assert digest(spy.load_checkpoint(saver.best_model_path)["state_dict"]) == digest(
        model.state_dict()
    )
    with pytest.raises(KeyError, match="only the model"):
        fit(module=Hyper, plugins=[spy], resume=saver.best_model_path)


def test_the_model_is_a_path_of_its_own(tmp_path: Path) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path), deploy="prod", pipeline="lossless")
    model, trainer = fit(plugins=[plugin], max_epochs=1)
    trainer.save_checkpoint(tmp_path / "runs" / "final.ckpt")
    live = plugin.repo.checkout(target="prod", path="runs/final.safetensors")
    Net().load_state_dict(live)
    assert digest(live) == digest(model.state_dict())
    text = (tmp_path / "runs" / "final.ckpt").read_text()
    (version,) = plugin.repo.log()
    assert text == (
        f"mvc lightning checkpoint 1\ncommit {version.id}\npath runs/final.safetensors\n"
    )


def test_beside_the_callback(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path / "repo") as repo:
        callback = MVCCallback(repo)
        plugin = MVCCheckpointIO(repo)
        _, saver, model, _ = run(tmp_path, callback, plugin=plugin, save_last=True)
        assert digest(repo.checkout("HEAD", path="model.safetensors")) == digest(model.state_dict())
        found = plugin.load_checkpoint(saver.last_model_path)
        assert digest(found["state_dict"]) == digest(model.state_dict())
        again = MVCCallback(repo)
        rest, trainer = fit(
            again, module=Hyper, validate=validation(), max_epochs=5, plugins=[plugin],
            resume=again.resume("HEAD"),
        )  # fmt: skip
        assert trainer.global_step == 25
        assert len(rest.trace) == 5


def test_saving_in_a_thread(tmp_path: Path) -> None:
    inner = Spy(existing(tmp_path / "repo"))
    _, saver, _, _ = run(tmp_path, plugin=AsyncCheckpointIO(inner), save_last=True)
    assert same(inner.load_checkpoint(saver.last_model_path), inner.saved[saver.last_model_path])


def test_averaged_weights(tmp_path: Path) -> None:
    spy, saver, _, _ = run(tmp_path, StochasticWeightAveraging(0.01, 2), save_top_k=1)
    assert same(spy.load_checkpoint(saver.best_model_path), spy.saved[saver.best_model_path])


@pytest.mark.parametrize(
    "state",
    [
        None, {}, {"w": torch.nn.Parameter(torch.ones(2))}, {"w": torch.ones(2), "extra": {"n": 1}},
        OrderedDict(w=torch.ones(2)), {"w": torch.ones(2)}, [torch.ones(2)],
    ],
    ids=["none", "empty", "parameter", "extra", "ordered", "dict", "list"],
)  # fmt: skip
def test_any_state(tmp_path: Path, state: Any) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path))
    given = {"before": 1, "state_dict": state, "after": [torch.ones(1)]}
    plugin.save_checkpoint(given, tmp_path / "a.ckpt")
    assert same(plugin.load_checkpoint(tmp_path / "a.ckpt"), given)
    plugin.save_checkpoint({"only": 1}, tmp_path / "b.ckpt")
    assert plugin.load_checkpoint("mvc:HEAD") == {"only": 1}
    assert same(plugin.load_checkpoint("mvc:HEAD~1"), given)


def to_meta(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
    return torch.UntypedStorage(storage.nbytes(), device="meta")


@pytest.mark.parametrize(
    "location",
    [torch.device("meta"), "meta", {"cpu": "meta"}, to_meta],
    ids=["device", "text", "mapping", "function"],
)
def test_tensors_go_where_they_are_wanted(tmp_path: Path, location: Any) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path))
    given = {"state_dict": OrderedDict(w=torch.ones(2)), "more": [(torch.ones(1), "x")]}
    plugin.save_checkpoint(given, tmp_path / "a.ckpt")
    found = plugin.load_checkpoint(tmp_path / "a.ckpt", map_location=location)
    assert type(found["state_dict"]) is OrderedDict
    assert found["state_dict"]["w"].device.type == "meta"
    assert found["more"][0][0].device.type == "meta"
    stays = plugin.load_checkpoint(tmp_path / "a.ckpt", map_location=lambda storage, _: storage)
    assert same(stays, given)


def test_what_cannot_be_kept_is_refused_by_name(tmp_path: Path) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path))
    with pytest.raises(UnsupportedTensor, match=r"checkpoint\.hyper_parameters\.loss is of type"):
        plugin.save_checkpoint({"hyper_parameters": {"loss": torch.nn.MSELoss()}}, "a.ckpt")
    with pytest.raises(UnsupportedTensor, match="sparse"):
        plugin.save_checkpoint({"m": torch.eye(2).to_sparse()}, tmp_path / "a.ckpt")
    assert not (tmp_path / "a.ckpt").exists()


@pytest.mark.parametrize(
    ("path", "kind"),
    [("s3://bucket/a.ckpt", WrongUsage), (".mvc/a.ckpt", InvalidName), ("a\nb.ckpt", InvalidName)],
    ids=["remote", "inside", "control"],
)
def test_paths_that_are_refused(tmp_path: Path, path: str, kind: type[MvcError]) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path))
    with pytest.raises(kind):
        plugin.save_checkpoint({}, path if "//" in path else tmp_path / path)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"PK\x03\x04 a file of torch.save", b"mvc lightning checkpoint 1\ncommit 00\npath a\n",
        b"mvc lightning checkpoint 1\ncommit " + b"0" * 64 + b"\npath ../a\n",
        b"mvc lightning checkpoint 1\ncommit " + b"0" * 64 + b"\npath a.safetensors\n",
        b"mvc lightning checkpoint 1\ncommit " + b"0" * 64 + b"\npath " + b"a" * 5000 + b"\n",
    ],
    ids=["empty", "torch", "short", "outside", "unknown", "long"],
)  # fmt: skip
def test_files_that_are_no_marker(tmp_path: Path, data: bytes) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path))
    plugin.save_checkpoint({}, tmp_path / "a.ckpt")
    (tmp_path / "b.ckpt").write_bytes(data)
    with pytest.raises(MvcError):
        plugin.load_checkpoint(tmp_path / "b.ckpt")
    if not data.startswith(b"mvc"):
        with pytest.raises(WrongUsage, match="is not an mvc checkpoint"):
            plugin.remove_checkpoint(tmp_path / "b.ckpt")
        assert (tmp_path / "b.ckpt").exists()


LOSSY = "topk:0.1 | xor | lsb:16 | zstd:1"


def test_no_pipeline_loses_bits(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="checkpoints must be exact"):
        MVCCheckpointIO(existing(tmp_path), pipeline=LOSSY)
    (tmp_path / ".mvc" / "config.yaml").write_text(f"commit:\n  pipeline: {LOSSY!r}\n")
    plugin = MVCCheckpointIO(existing(tmp_path))
    for seed in range(3):
        torch.manual_seed(seed)
        given = {"state_dict": {"w": torch.randn(4096)}}
        plugin.save_checkpoint(given, tmp_path / "a.ckpt")
        assert same(plugin.load_checkpoint(tmp_path / "a.ckpt"), given)


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    plugin = MVCCheckpointIO(existing(tmp_path))
    with pytest.raises(WrongUsage, match="storage_options"):
        plugin.save_checkpoint({}, tmp_path / "a.ckpt", storage_options={})
    plugin.repo.commit({"w": torch.ones(1)})
    with pytest.raises(UnknownPath, match="has 0 checkpoints"):
        plugin.load_checkpoint("mvc:HEAD")
    plugin.save_checkpoint({}, tmp_path / "a.ckpt")
    plugin.save_checkpoint({}, tmp_path / "b.ckpt")
    plugin.repo.commit({"w": torch.ones(2)})
    with pytest.raises(UnknownPath, match="has 2 checkpoints, and it is unclear which"):
        plugin.load_checkpoint("mvc:HEAD")


def test_a_version_of_the_callback_says_how_to_go_on(tmp_path: Path) -> None:
    fit(MVCCallback(existing(tmp_path)), max_steps=1)
    plugin = MVCCheckpointIO(tmp_path)
    with pytest.raises(UnknownPath, match="is not a checkpoint") as caught:
        plugin.load_checkpoint("mvc:HEAD")
    assert "callback.resume(REV)" in (caught.value.hint or "")


def test_a_missing_checkpoint(repo: mvc.Repository, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at") as caught:
        MVCCheckpointIO(repo).load_checkpoint(tmp_path / "none.ckpt")
    assert isinstance(caught.value, UnknownPath)


@pytest.mark.parametrize("open_one", [True, False], ids=["open repository", "folder"])
def test_a_plugin_in_use_is_copied(repo: mvc.Repository, tmp_path: Path, open_one: bool) -> None:
    plugin = MVCCheckpointIO(repo if open_one else repo.root)
    plugin.save_checkpoint({"epoch": 1}, tmp_path / "a.ckpt")
    assert (plugin.repo is repo) == open_one
    copied = deepcopy(plugin)
    plugin.teardown()
    assert copied.load_checkpoint(tmp_path / "a.ckpt") == {"epoch": 1}
    copied.save_checkpoint({"epoch": 2}, tmp_path / "a.ckpt")
    assert len(list(repo.log())) == 2


def test_a_plugin_in_use_goes_to_another_process(repo: mvc.Repository, tmp_path: Path) -> None:
    plugin = MVCCheckpointIO(repo.root)
    plugin.save_checkpoint({"epoch": 1}, tmp_path / "a.ckpt")
    assert plugin.repo.root == repo.root
    again = pickle.loads(pickle.dumps(plugin))
    plugin.teardown()
    assert again.load_checkpoint(tmp_path / "a.ckpt") == {"epoch": 1}


def test_what_is_handed_over_between_processes_is_no_version(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    """As the launcher of ddp_spawn does it."""
    plugin = MVCCheckpointIO(repo.root, deploy="prod")
    file, weights = tmp_path / ".temp.ckpt", {"w": torch.arange(3.0)}
    plugin.save_checkpoint(weights, file)
    assert torch.equal(plugin.load_checkpoint(file)["w"], weights["w"])
    plugin.remove_checkpoint(file)
    assert not file.exists()
    assert not repo.deployments() and not repo.refs()


def test_spawned_processes_deploy_their_checkpoints_alone(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    mvc.Repository.init(root).close()
    code = f"""
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from mvc.frameworks.lightning import MVCCheckpointIO

if __name__ == "__main__":
    pl.Trainer(
        default_root_dir={str(tmp_path)!r}, accelerator="cpu", devices=2, strategy="ddp_spawn",
        max_epochs=1, limit_train_batches=2, limit_val_batches=0, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        plugins=[MVCCheckpointIO({str(root)!r}, deploy="prod")],
        callbacks=[ModelCheckpoint({str(tmp_path / "ck")!r}, save_last=True)],
    ).fit(BoringModel())
"""
    script = tmp_path / "train.py"
    script.write_text(code)
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path, capture_output=True)
    with mvc.Repository.open(root) as repo:
        messages = {entry.commit.message for entry in repo.log()}
        assert messages == {"checkpoint last.ckpt", "checkpoint epoch=0-step=2.ckpt"}
        assert repo.live("prod").commit == repo.find("HEAD")


def mvc_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mvc")]


def test_trainings_behind_an_asynchronous_plugin(tmp_path: Path) -> None:
    """Each goes onto the branch that is current as it begins; nothing stays open behind them."""
    before = mvc_threads()
    root = tmp_path / "repo"
    mvc.Repository.init(root).close()
    plugin = AsyncCheckpointIO(MVCCheckpointIO(root))
    fit(ModelCheckpoint(tmp_path / "a"), max_epochs=1, enable_checkpointing=True, plugins=[plugin])
    assert mvc_threads() == before
    with mvc.Repository.open(root) as repo:
        repo.branch("second")
        repo.switch("second")
    fit(ModelCheckpoint(tmp_path / "b"), max_epochs=1, enable_checkpointing=True, plugins=[plugin])
    with mvc.Repository.open(root) as repo:
        assert {str(b): len(list(repo.log(b))) for b in ("main", "second")} == {
            "main": 1,
            "second": 2,
        }


def test_nothing_stays_open_after_loading_outside_of_a_fit(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    MVCCheckpointIO(repo).save_checkpoint({"epoch": 1}, tmp_path / "a.ckpt")
    before = mvc_threads()
    files = set(os.listdir("/proc/self/fd"))
    plugin = MVCCheckpointIO(repo.root)
    plugin.load_checkpoint(tmp_path / "a.ckpt")
    plugin.remove_checkpoint(tmp_path / "a.ckpt")
    assert mvc_threads() == before
    assert set(os.listdir("/proc/self/fd")) == files
