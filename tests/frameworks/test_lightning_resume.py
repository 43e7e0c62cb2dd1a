"""A whole training gives the bits of a part, a resume with new objects, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.frameworks.need import need

need("lightning", "lightning.pytorch")

import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

import mvc  # noqa: E402
from mvc.errors import CannotResume  # noqa: E402
from mvc.frameworks.lightning.callback import MVCCallback  # noqa: E402
from mvc.frameworks.lightning.state import Resume  # noqa: E402
from tests.frameworks.lightning_runs import (  # noqa: E402
    BATCHES,
    INPUTS,
    LABELS,
    SIZE,
    Net,
    bits,
    existing,
    fit,
    loader,
    validation,
    wider,
)


class Manual(Net):
    """Two optimizers with a scheduler each, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = super().training_step(batch, batch_idx)
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self) -> Any:
        made = [
            torch.optim.SGD(self.first.parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(self.last.parameters(), lr=0.01),
        ]
        return made, [torch.optim.lr_scheduler.MultiStepLR(o, [2, 2, 6], 0.5) for o in made]


class Stream(IterableDataset[Any]):
    """Of a length that nobody knows."""

    def __iter__(self) -> Any:
        return iter(zip(INPUTS, LABELS, strict=True))


def own_generator() -> DataLoader[Any]:
    return loader(generator=torch.Generator().manual_seed(3))


def scaler() -> list[Any]:
    inner = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    return [MixedPrecision("16-mixed", "cpu", scaler=inner)]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "plateau": {"validate": validation, "module": lambda: Net(plateau=True)},
    "accumulated": {"accumulate_grad_batches": 2},
    "workers": {"train": lambda: loader(2)},
    "generator": {"train": own_generator},
    "manual": {"module": Manual},
    "stream": {"train": lambda: DataLoader(Stream(), batch_size=SIZE)},
    "limited": {"limit_train_batches": 4},
    "scaler": {"plugins": scaler},
}


def run(case: str, *callbacks: pl.Callback, **options: Any) -> tuple[Any, pl.Trainer]:
    made = dict(CASES[case])
    for name in ("train", "validate", "plugins"):
        if name in made:
            made[name] = made[name]()
    return fit(*callbacks, **{**made, **options})


@pytest.mark.parametrize(
    ("case", "stop"),
    [
        ("plain", {"max_steps": 7}),
        ("plateau", {"max_steps": 3}),
        ("plateau", {"max_epochs": 2}),
        ("accumulated", {"max_steps": 4}),
        ("workers", {"max_steps": 7}),
        ("generator", {"max_steps": 7}),
        ("generator", {"max_epochs": 1}),
        ("manual", {"max_steps": 2 * 7}),
        ("manual", {"max_epochs": 2}),
        ("stream", {"max_steps": 7}),
        ("scaler", {"max_steps": 4}),
        ("limited", {"max_steps": 6}),
        ("limited", {"max_epochs": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, *value.items())),
)
def test_goes_on_with_the_same_bits(tmp_path: Path, case: str, stop: dict[str, int]) -> None:
    whole, trainer = run(case, max_epochs=3)
    part, _ = run(case, MVCCallback(existing(tmp_path)), **{"max_epochs": 3, **stop})
    callback = MVCCallback(existing(tmp_path))
    rest, again = run(
        case, callback, resume=callback.resume("HEAD"), max_epochs=3, first_seed=99
    )  # fmt: skip
    assert 0 < len(part.trace) < len(whole.trace)
    assert part.trace + rest.trace == whole.trace
    assert bits(rest, again) == bits(whole, trainer)
    assert callback.resumed.differs == ()
    if case == "scaler":
        scale = [t.precision_plugin.scaler.state_dict() for t in (trainer, again)]
        assert scale[0] == scale[1]
        assert scale[0]["scale"] != 64.0


def every_version(tmp_path: Path, **options: Any) -> dict[str, int]:
    """Goes on from each version of a training; the refusals with how often they were given."""
    repo = mvc.Repository.init(tmp_path)
    whole, trainer = fit(MVCCallback(repo), validate=validation(), **options)
    refused: dict[str, int] = {}
    for entry in repo.log():
        callback = MVCCallback(repo, include=["model"])
        try:
            path = callback.resume(entry.id)
        except CannotResume as error:
            reason = error.message.removeprefix(entry.id.short)
            refused[reason] = refused.get(reason, 0) + 1
            continue
        rest, again = fit(
            callback, resume=path, validate=validation(), first_seed=entry.id[0], **options
        )
        count = len(rest.trace)
        assert rest.trace == whole.trace[len(whole.trace) - count :]
        assert count == len(whole.trace) - callback.resumed.step
        if count:
            assert bits(rest, again) == bits(whole, trainer)
    repo.close()
    return refused


def test_every_version_of_two_epochs(tmp_path: Path) -> None:
    end = " is before the end of the epoch, which Lightning would skip"
    assert every_version(tmp_path, max_epochs=2) == {end: 2}


def test_validation_within_an_epoch(tmp_path: Path) -> None:
    end = " is before the end of the epoch, which Lightning would skip"
    inside = " is before a validation, which Lightning would skip"
    refused = every_version(tmp_path, max_epochs=1, val_check_interval=2)
    assert refused == {end: 1, inside: 2}


def test_a_second_fit_counts_on(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path))
    model, trainer = fit(callback, max_epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader())
    messages = [entry.commit.message for entry in callback.repo.log()][::-1]
    wanted = [*range(1, 6), 5, *range(6, 11), 10]
    assert messages == [f"step {n}" for n in wanted]
    whole = model.trace
    third = MVCCallback(existing(tmp_path))
    rest, _ = fit(third, resume=third.resume("HEAD~3"), max_epochs=2, first_seed=5)
    assert rest.trace == whole[8:]


def test_goes_on_outside_of_lightning(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path))
    model, trainer = fit(callback, max_epochs=1)
    fresh = Net()
    made = fresh.configure_optimizers()
    scheduler = made["lr_scheduler"]["scheduler"]
    resumed = mvc.resume(callback.repo, fresh, made["optimizer"], scheduler=scheduler)
    assert resumed.step == BATCHES
    assert resumed.batch == {"epoch": 1, "batch": 0, "global_step": BATCHES}
    trainer.strategy.optimizers = [made["optimizer"]]
    assert bits(fresh, trainer)[0] == bits(model, trainer)[0]


@pytest.mark.parametrize("part", ["scheduler", "scaler"])
def test_a_part_was_not_recorded(tmp_path: Path, part: str) -> None:
    include = [p for p in ("model", "optimizer", "scheduler", "scaler", "rng") if p != part]
    callback = MVCCallback(existing(tmp_path), include=include)
    fit(callback, max_steps=1)
    with pytest.raises(CannotResume, match=f"without the {part}"):
        callback.resume("HEAD")


class OtherOptimizer(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OtherScheduler(Net):
    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(made["optimizer"], T_max=100)
        return {"optimizer": made["optimizer"], "lr_scheduler": {
            "scheduler": cosine, "interval": "step"}}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"module": wider}, r"last.weight: float32 \(3, 12\) in the version"),
        ({"module": OtherOptimizer}, "1 schedulers, configure_optimizers returned 0"),
        ({"module": OtherScheduler}, r"scheduler was .*MultiStepLR, not .*CosineAnnealingLR"),
        ({"module": Manual}, "1 optimizers, configure_optimizers returned 2"),
        ({"train": own_generator}, "had 0 generators, these have 1"),
    ],
    ids=["shape", "schedulers", "scheduler", "optimizers", "generators"],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, Callable[[], Any]], reason: str
) -> None:
    fit(MVCCallback(existing(tmp_path)), max_steps=2)
    callback = MVCCallback(existing(tmp_path))
    options: dict[str, Any] = {**changed}
    if "train" in options:
        options["train"] = options["train"]()
    with pytest.raises(CannotResume, match=reason):
        fit(callback, resume=callback.resume(), **options)
    assert len(list(callback.repo.log())) == 2


def other_loader(rows: int = BATCHES * SIZE, size: int = SIZE) -> DataLoader[Any]:
    subset = torch.utils.data.Subset(loader().dataset, range(rows))
    return DataLoader(subset, batch_size=size, shuffle=True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"size": 2}, "batch size: 2, not 4, batches an epoch: 10, not 5"),
        ({"size": 10}, "batch size: 10, not 4, batches an epoch: 2, not 5"),
        ({"rows": 19}, "rows: 19, not 20"),
    ],
    ids=["smaller", "larger", "rows"],
)
def test_other_data(tmp_path: Path, changed: dict[str, int], reason: str) -> None:
    """Refused in the middle of an epoch, told at its end."""
    part = MVCCallback(existing(tmp_path))
    fit(part, max_epochs=1)
    callback = MVCCallback(tmp_path)
    with pytest.raises(CannotResume, match=f"data have changed: {reason}\n") as caught:
        fit(callback, train=other_loader(**changed), resume=callback.resume("HEAD~2"), max_epochs=2)
    assert "end of an epoch" in (caught.value.hint or "")
    fit(callback, train=other_loader(**changed), resume=callback.resume("HEAD"), max_epochs=2)
    assert ", ".join(callback.resumed.differs) == reason


def test_fewer_batches_of_an_epoch_are_told(tmp_path: Path) -> None:
    fit(MVCCallback(existing(tmp_path)), max_steps=3)
    callback = MVCCallback(tmp_path)
    fit(callback, resume=callback.resume(), limit_train_batches=4, max_epochs=1)
    assert callback.resumed.differs == ("batches that the Trainer takes: 4, not 5",)


def test_lightning_does_not_warn_of_what_is_exact(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    fit(MVCCallback(existing(tmp_path)), max_steps=3)
    callback = MVCCallback(tmp_path)
    _, trainer = fit(callback, resume=callback.resume(), max_steps=4)
    assert not [w for w in recwarn.list if "ended before the epoch ended" in str(w.message)]
    assert "reset" not in vars(trainer.fit_loop.epoch_loop)


class Pairs(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch["a"], batch_idx)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start([*batch["a"], *batch["b"]], batch_idx)


def test_several_loaders_go_on_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    def pair() -> dict[str, Any]:
        return {"a": loader(), "b": DataLoader(INPUTS[:6], batch_size=SIZE, shuffle=True)}

    whole, _ = fit(module=Pairs, train=pair(), max_epochs=2)
    callback = MVCCallback(existing(tmp_path))
    fit(callback, module=Pairs, train=pair(), max_epochs=1)
    with pytest.raises(CannotResume, match="several training loaders"):
        callback.resume("HEAD~2")
    rest, _ = fit(
        callback, module=Pairs, train=pair(), resume=callback.resume(), max_epochs=2, first_seed=4
    )
    assert rest.trace == whole.trace[BATCHES:]


class Fetches(Net):
    def training_step(self, dataloader_iter: Any) -> torch.Tensor:
        (x, y), _, _ = next(dataloader_iter)
        return torch.nn.functional.cross_entropy(self(x), y)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        pass


def test_a_step_that_fetches_itself_has_no_position(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path))
    fit(callback, module=Fetches, max_steps=2)
    with pytest.raises(CannotResume, match="a batch that training_step fetches itself"):
        callback.resume("HEAD")


class Placed:
    """A loader that knows its place; which epoch it is it hears from the Trainer."""

    def __init__(self) -> None:
        self.epoch = self.done = 0
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Any:
        if self.done == BATCHES:
            self.done = 0
        order = torch.randperm(len(INPUTS), generator=torch.Generator().manual_seed(self.epoch))
        while self.done < BATCHES:
            rows = order[self.done * SIZE :][:SIZE]
            self.done += 1
            yield INPUTS[rows], LABELS[rows]

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


@pytest.mark.parametrize("stop", [{"max_steps": 3}, {"max_steps": 8}, {"max_epochs": 1}], ids=str)
def test_a_loader_that_knows_its_place(tmp_path: Path, stop: dict[str, int]) -> None:
    whole, _ = fit(train=Placed(), max_epochs=2)
    part, _ = fit(MVCCallback(existing(tmp_path)), train=Placed(), **{"max_epochs": 2, **stop})
    callback = MVCCallback(existing(tmp_path))
    rest, _ = fit(callback, train=Placed(), resume=callback.resume(), max_epochs=2, first_seed=3)
    assert part.trace + rest.trace == whole.trace


def test_more_processes_than_before(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path))
    fit(callback, max_steps=1)
    kept = Resume(callback.repo, callback.repo.find("HEAD"), "model.safetensors")
    with pytest.raises(CannotResume, match="generators of one process, this training has 2"):
        kept.checkpoint(SimpleNamespace(world_size=2))


def test_going_on_from_elsewhere_after_all(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path / "repo"))
    _, trainer = fit(callback, max_steps=2)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    callback.resume("HEAD~1")
    _, again = fit(callback, resume=str(tmp_path / "a.ckpt"), max_steps=4)
    assert callback.resumed is None
    assert again.global_step == 4
