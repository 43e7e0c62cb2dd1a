"""Weights that are given up for a recipe: what stays, what is told, and how they come back."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from msgspec.structs import replace
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException

import mvc
import mvc.recipes as recipes
from mvc.errors import (
    CannotRecord,
    CannotRetrain,
    DamagedData,
    MvcError,
    NotTrusted,
    RefConflict,
    UnknownPath,
    WeightsDropped,
)
from mvc.frameworks.dcp import MvcReader
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from mvc.repo.lookup import availability
from mvc.repo.lookup.availability import Dropped
from mvc.store.store import Store
from tests.frameworks.need import need
from tests.oracle import reader
from tests.recipes.by_hand import drop, mark_dropped, prove
from tests.recipes.recorded import recorded
from tests.recipes.trainings import Conv, make_images, train_images

pytestmark = pytest.mark.usefixtures("prepared")


class Chain:
    """Versions of one model; the second and third were trained from the one before."""

    def __init__(self, repo: mvc.Repository, folder: Path, trainings: int = 2) -> None:
        self.repo, self.states = repo, list[dict[str, torch.Tensor]]()
        torch.manual_seed(1)
        self.model = mvc.constructed(Conv, 4, dropout=0.5)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.ids: list[CommitId] = [repo.commit(self.model.state_dict()).id]
        self._keep()
        data = make_images(folder / "images", 16)
        for _ in range(trainings):
            self.train(data, verify=False)

    def train(self, data: Path, **flags: Any) -> None:
        """Records the next version, also if its proof fails."""
        run = mvc.record(
            self.repo, self.model, self.optimizer, data=data, service=train_images, **flags
        )
        try:
            with run:
                run.train()
        finally:
            if run.result is not None:
                self.ids.append(run.result.id)
                self._keep()

    def _keep(self) -> None:
        self.states.append({n: v.clone() for n, v in self.model.state_dict().items()})

    def lose(self, *versions: CommitId) -> None:
        """Gives up the weights of versions, and collects them."""
        drop(self.repo, *versions)
        self.repo.storage.gc(grace="0")

    def dropped(self, version: CommitId) -> Dropped | None:
        (entry,) = (entry for entry in self.repo.log() if entry.id == version)
        return entry.dropped

    def is_right(self, rev: int) -> bool:
        state = self.repo.checkout(self.ids[rev])
        return all(torch.equal(state[n], v) for n, v in self.states[rev].items())


@pytest.fixture
def chain(repo: mvc.Repository, tmp_path: Path) -> Chain:
    return Chain(repo, tmp_path)


def test_only_a_proven_recipe_lets_weights_go(chain: Chain) -> None:
    repo, (start, first, _) = chain.repo, chain.ids
    with pytest.raises(UnknownPath, match="has no recipe"):
        recipes.drop_weights(repo, [start])
    with pytest.raises(CannotRetrain, match="is not proven"):
        recipes.drop_weights(repo, [first])
    mvc.retrain(repo, first, trust=True)
    recipes.drop_weights(repo, [first])
    repo.storage.gc(grace="0")
    dropped = chain.dropped(first)
    assert dropped is not None and dropped.proven_ns is not None and "torch" in dropped.where
    with pytest.raises(WeightsDropped, match="were dropped") as caught:
        repo.checkout(first)
    assert f"mvc retrain {first.short} --trust-code" in str(caught.value.hint)
    with mvc.retraining(repo, first, trust=True):
        assert chain.is_right(1)
    with pytest.raises(WeightsDropped):
        repo.checkout(first)
    with pytest.raises(WeightsDropped):
        repo.storage.repack(add=[first])
    with pytest.raises(NotTrusted):
        recipes.store_weights(repo, first)
    recipes.store_weights(repo, first, trust=True)
    assert chain.is_right(1)
    assert repo.storage.fsck(full=True).sound
    assert chain.dropped(first) is None


def test_a_chain_of_recipes_is_trained_again_from_the_last_stored_version(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    drop(repo, first, second)
    before = repo.storage.stats()
    freed = repo.storage.gc(grace="0").freed
    assert freed > 0
    assert repo.storage.stats().stored_bytes < before.stored_bytes
    assert (repo.storage.stats().dropped, repo.storage.stats().forgotten) == (2, 0)
    report = repo.storage.fsck(full=True)
    assert report.sound
    assert not report.lost
    assert sum("recoverable by retraining" in note for note in report.notes) == 2
    with pytest.raises(NotTrusted) as caught:
        mvc.retrain(repo, second)
    assert all(f"show --code {each.short}" in str(caught.value.hint) for each in (first, second))
    assert f"--trust {first.short} --trust {second.short}" in str(caught.value.hint)
    assert caught.value.versions == (first, second)
    done = mvc.retrain(repo, second, trust=caught.value.versions)
    assert done.replayed == (first, second)
    assert all(torch.equal(done.state[n], v) for n, v in chain.states[2].items())
    assert repo.storage.fsck().sound


def test_report_leaves_out_changes_of_versions_without_weights(chain: Chain) -> None:
    repo, (start, first, _) = chain.repo, chain.ids
    repo.commit({n: v + 1 for n, v in chain.states[2].items()})
    chain.lose(first)
    page = mvc.write_report(repo)
    assert start.short in page and re.search(r"Shown: the newest 1 of \d changes", page)


def test_every_verified_replay_is_recorded_as_a_proof(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    chain.lose(first, second)
    with mvc.retraining(repo, second, trust=[first, second]) as done:
        assert done.replayed == (first, second)
        assert repr(done).startswith(f"<Retrained: {second.short} model.safetensors, 2 replayed")
    for id_ in (first, second):
        dropped = chain.dropped(id_)
        assert dropped is not None and dropped.proven_ns is not None and "torch" in dropped.where


def test_within_retraining_every_reader_has_the_weights(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    chain.lose(second)
    for read in (
        lambda: mvc.load_model(repo, second, trust=True),
        lambda: repo.checkout(second, to=repo.root.parent / "elsewhere.safetensors"),
        lambda: repo.switch("side", create=True, start=second, force=True),
    ):
        with pytest.raises(WeightsDropped, match="were dropped") as caught:
            read()
        assert f"with mvc.retraining(repo, '{second.short}', trust=True)" in str(caught.value.hint)
    with mvc.retraining(repo, second, trust=True):
        model = mvc.load_model(repo, second, trust=True)
        assert all(torch.equal(v, chain.states[2][n]) for n, v in model.state_dict().items())
        repo.checkout(second, to=repo.root.parent / "elsewhere.safetensors")
        written = load_file(repo.root.parent / "elsewhere.safetensors")
        assert all(torch.equal(v, chain.states[2][n]) for n, v in written.items())
        assert not repo.diff(first, second).unmeasured
        repo.switch("side", create=True, start=second, force=True)
    assert repo.identify(repo.root / "model.safetensors")[0].commit == second


def test_what_a_dropped_version_needs_is_not_forgotten(chain: Chain) -> None:
    repo, (start, first, _) = chain.repo, chain.ids
    drop(repo, first)
    data = recipes.data_set(repo, "images").version
    for needed in (start, data):
        with pytest.raises(RefConflict, match=r"is needed to retrain"):
            repo.storage.forget(needed)
    repo.tag("kept", first)
    assert start not in {c.id for c in repo.storage.forget(keep_last=1, dry_run=True).commits}
    repo.storage.forget([start, first])  # all of them together may go
    repo.storage.gc(grace="0")
    assert chain.is_right(2)


def test_other_files_manifests_and_what_it_carries_stay(chain: Chain, tmp_path: Path) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    chain.lose(second)
    assert recipes.code(repo, second)
    assert repo.manifest(second).root == repo.version(second).root
    found = repo.diff(first, second)  # by how much they differ is not known without them
    assert "were dropped" in found.unmeasured["model.safetensors"]
    assert {row.l2 for row in found.files[0].tensors} == {None}
    with pytest.raises(WeightsDropped):
        repo.checkout(second, to=tmp_path / "out")
    assert [type(state) for _, state in repo.iter_versions(on_error="yield")][-1] is WeightsDropped
    with pytest.raises(WeightsDropped):
        repo.open_file("HEAD", repo.manifest("HEAD").entries[0].path)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_readers_of_checkpoints_and_files_say_that_weights_were_given_up(chain: Chain) -> None:
    need("fsspec")
    from mvc.frameworks.fsspec.filesystem import MvcFileSystem

    repo = chain.repo
    chain.lose(chain.ids[2])
    with pytest.raises(CheckpointException, match="were dropped"):
        dcp.load(dict(chain.states[2]), storage_reader=MvcReader(repo))
    fs, path = MvcFileSystem(), f"mvc://{repo.root}@HEAD/model.safetensors"
    for read in (
        lambda: fs.cat_file(path),
        lambda: fs.cp_file(path, f"mvc://{repo.root}@main/copy.safetensors"),
        lambda: fs.mv(path.replace("HEAD", "main"), f"mvc://{repo.root}@main/moved.safetensors"),
    ):
        with pytest.raises(WeightsDropped):
            read()


def test_a_version_is_committed_on_a_dropped_one_only_with_weights_of_its_own(chain: Chain) -> None:
    repo, second = chain.repo, chain.ids[2]
    chain.lose(second)
    with pytest.raises(WeightsDropped):
        repo.commit({"x": torch.zeros(3)}, path="other.safetensors")
    with mvc.retraining(repo, second, trust=True), pytest.raises(WeightsDropped):
        repo.commit({"x": torch.zeros(3)}, path="other.safetensors")  # readable, but not stored
    repo.commit({n: v + 1 for n, v in chain.states[2].items()})
    assert repo.storage.fsck(full=True).sound


def test_weights_that_another_version_has_stay_readable(chain: Chain) -> None:
    repo, second = chain.repo, chain.ids[2]
    repo.commit(chain.states[2], message="the same again")
    chain.lose(second)
    assert chain.is_right(2)
    recipes.store_weights(repo, second)  # nothing is trained: they are there
    assert chain.dropped(second) is None


def test_weights_that_are_stored_again_by_a_commit_are_told(chain: Chain) -> None:
    repo, second = chain.repo, chain.ids[2]
    chain.lose(second)
    assert "still stored" not in str(chain.dropped(second))
    repo.commit(chain.states[2])
    assert str(chain.dropped(second)).endswith("), still stored")
    recipes.store_weights(repo, second)  # trains nothing
    assert chain.dropped(second) is None


def test_the_marks_are_read_from_the_format_alone(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    drop(repo, first, second)
    recipes.store_weights(repo, second)
    repo.close()
    held = reader.Repository(repo.root / ".mvc")
    assert [mark for entry in held.entries for mark in entry.states] == [
        (bytes(first), "model.safetensors", 3),
        (bytes(second), "model.safetensors", 3),
        (bytes(second), "model.safetensors", 2),
    ]


def test_rebuilding_index_and_journal_keeps_the_marks(chain: Chain) -> None:
    repo, second = chain.repo, chain.ids[2]
    chain.lose(second)
    repo.storage.rebuild_index()
    with pytest.raises(WeightsDropped):
        repo.checkout(second)
    repo.storage.repack(interval=1)
    repo.storage.repair()
    assert repo.storage.fsck(full=True).sound
    with pytest.raises(WeightsDropped):
        repo.checkout(second)


def weigh(repo: mvc.Repository, weight: float) -> None:
    file = repo.handle.store.root / ".mvc/config.yaml"
    set_value(FileSystem(), file, "store.storage_weight", str(weight))


def test_the_price_of_a_recipe_is_that_of_all_trainings_back_to_stored_weights(
    chain: Chain,
) -> None:
    repo, (start, first, second) = chain.repo, chain.ids
    drop(repo, first, second)
    weigh(repo, 3.0)
    with mvc.Repository.open(repo.handle.store.root) as chain.repo:
        stored = {
            e.id: e.storage for e in chain.repo.log("HEAD", mvc.LogOptions(every=True, prices=True))
        }
        taken = [e.dropped.seconds for e in chain.repo.log() if e.dropped is not None]
        seconds = [stored[id_].seconds for id_ in (start, first, second)]  # type: ignore[union-attr]
        assert seconds[1] - seconds[0] == pytest.approx(taken[1])
        assert seconds[2] - seconds[1] == pytest.approx(taken[0])
        prices = [each.price for each in stored.values() if each is not None]
        of_versions = sum(price for price in prices if price is not None)
        assert chain.repo.storage.stats().price == pytest.approx(of_versions)


def test_a_repack_gives_up_weights_whose_base_was_given_up_before(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    drop(repo, first)
    for proven in (first, second):
        prove(repo.handle, proven, "model.safetensors")
    repo.storage.gc(grace="0")
    weigh(repo, 1e12)
    with mvc.Repository.open(repo.handle.store.root) as chain.repo:
        done = chain.repo.storage.repack(alternatives=recipes.alternatives(chain.repo))
        assert done.plan.dropped == (second,)
        chain.repo.storage.gc(grace="0")  # what was kept as a step between the two goes, too
        price = chain.repo.storage.stats().price
        assert price <= 1.05 * done.plan.prices[1] < done.plan.prices[0]


@pytest.mark.parametrize("collected", [False, True])
def test_a_delta_of_a_version_that_gave_up_its_weights_needs_no_training(
    chain: Chain, collected: bool
) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    set_value(FileSystem(), repo.handle.store.root / ".mvc/config.yaml", "store.layout", "chain")
    chain.repo = repo = mvc.Repository.open(repo.handle.store.root)
    moved = {
        name: value * (1 + 1e-6) if value.is_floating_point() else value
        for name, value in chain.states[2].items()
    }
    newest = repo.commit(moved).id
    assert next(iter(repo.log("HEAD", mvc.LogOptions(prices=True)))).storage.kind == "delta"  # type: ignore[union-attr]
    drop(repo, first, second)
    if collected:
        repo.storage.gc(grace="0")
        with pytest.raises(WeightsDropped):
            repo.checkout(second)
    with mvc.retraining(repo, newest, trust=True) as trained:
        assert trained is None  # stored deltas and full records lead there
    state = repo.checkout(newest)
    assert all(torch.equal(state[name], value) for name, value in moved.items())
    with mvc.retraining(repo, second, trust=[first, second]) as trained:
        assert (trained is not None) == collected
        assert chain.is_right(2)


def test_a_repack_gives_up_weights_that_cost_more_than_their_recipe(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    mvc.retrain(repo, first, trust=True)
    weigh(repo, 1e12)
    with mvc.Repository.open(repo.handle.store.root) as chain.repo:
        planned = chain.repo.storage.repack(
            alternatives=recipes.alternatives(chain.repo), dry_run=True
        ).plan
        assert planned.dropped == (first,)
        assert planned.prices[1] < planned.prices[0]
        assert chain.is_right(1)
        assert chain.repo.storage.repack(
            alternatives=recipes.alternatives(chain.repo)
        ).plan.dropped == (first,)
        chain.repo.storage.gc(grace="0")
        with pytest.raises(WeightsDropped):
            chain.repo.checkout(first)
        assert chain.is_right(0)
        assert chain.is_right(2)
        kinds = {
            e.id: e.storage.kind
            for e in chain.repo.log("HEAD", mvc.LogOptions(prices=True))
            if e.storage
        }
        assert kinds[first] == "recipe"
        assert kinds[second] != "recipe"
        assert chain.repo.storage.stats().kinds["recipe"] == 1


def test_no_weights_are_dropped_for_a_version_that_is_made_from_them(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    for each in (first, second):
        prove(repo.handle, each, "model.safetensors", 5, second if each == first else first)
    weigh(repo, 1e12)
    with mvc.Repository.open(repo.handle.store.root) as chain.repo:
        found = recipes.alternatives(chain.repo)
        found[first] = replace(found[first], base=second)
        assert chain.repo.storage.repack(alternatives=found, dry_run=True).plan.dropped == (second,)
        with pytest.raises(CannotRetrain, match="is not proven"):
            chain.repo.storage.drop_weights(found)


@pytest.mark.parametrize(("weight", "gone"), [(None, False), (1e-3, False), (1e12, True)])
def test_a_recorded_training_keeps_the_cheaper_of_weights_and_recipe(
    repo: mvc.Repository, tmp_path: Path, weight: float | None, gone: bool
) -> None:
    if weight is not None:
        weigh(repo, weight)
    with mvc.Repository.open(repo.handle.store.root) as opened:
        model = mvc.constructed(Conv, 4, dropout=0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        opened.commit(model.state_dict())
        data = make_images(tmp_path / "images", 16)
        recorded(opened, model, optimizer, data=data, service=train_images, verify=True)
        (newest, *_) = opened.log()
        assert (newest.dropped is not None) == gone


def spoil(repo: mvc.Repository, version: CommitId, path: str) -> None:
    """Damages the payload of the largest tensor of a file."""
    manifest = repo.manifest(version)
    entry = (manifest.by_path | manifest.attached_by_path)[path]
    content = max(entry.contents, key=lambda content: content.spec.nbytes)
    *_, step = repo.handle.store.graph.path(content.id, 0).steps
    pack = repo.handle.store.folder / "packs" / f"{step.pack:08d}.pack"
    data = bytearray(pack.read_bytes())
    data[step.offset + step.header.body_at + step.member.at + step.member.stored // 2] ^= 4
    pack.write_bytes(data)


@pytest.mark.parametrize("what", ["service", "code", "data", "base"])
def test_weights_stay_if_their_recipe_is_not_whole(chain: Chain, what: str) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    path = {
        "service": ".mvc/service/optimizer.safetensors",
        "code": ".mvc/code/tests/recipes/trainings.py",
        "data": "images.npy",
        "base": "model.safetensors",
    }[what]
    version = {"data": recipes.data_set(repo, "images").version, "base": first}.get(what, second)
    repo.storage.repack(interval=1)  # everything in full: nothing else is damaged with it
    spoil(repo, version, path)
    with mvc.Repository.open(repo.root) as chain.repo:
        with pytest.raises(DamagedData, match="no weights were dropped: their recipe needs"):
            drop(chain.repo, second)
        assert chain.is_right(2)
        assert chain.repo.storage.stats().dropped == 0


def test_weights_that_a_gc_collects_meanwhile_are_trained_again(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, second = chain.repo, chain.ids[2]
    drop(repo, second)
    is_stored, collected = availability.is_stored, list[bool]()

    def racing(store: Store, entry: object) -> bool:
        found = is_stored(store, entry)  # type: ignore[arg-type]
        if found and not collected:
            collected.append(True)
            with mvc.Repository.open(repo.root) as other:
                other.storage.gc(grace="0")
        return found

    monkeypatch.setattr(availability, "is_stored", racing)
    recipes.store_weights(repo, second, trust=True)
    assert collected
    assert chain.is_right(2)
    assert repo.storage.fsck(full=True).sound


def test_marks_of_a_collected_version_do_no_harm(chain: Chain) -> None:
    repo, (start, first, second) = chain.repo, chain.ids
    mvc.retrain(repo, first, trust=True)
    repo.switch("side", create=True, start=start, force=True)
    repo.delete_ref("branch", "main", force=True)
    drop(repo, second)
    old = repo.storage.gc(grace="0").commits
    assert {first, second} <= set(old)
    # As a gc before left it: the mark is there, and the version is not.
    mark_dropped(repo.handle, second)
    repo.commit({"x": torch.ones(3)}, path="x.safetensors")
    gone = repo.commit({"x": torch.zeros(3)}, path="x.safetensors").id
    repo.commit({"x": torch.ones(4)}, path="x.safetensors")
    repo.storage.forget([gone])
    assert repo.storage.fsck().sound
    assert repo.storage.stats().dropped == 0
    weigh(repo, 1e12)
    with mvc.Repository.open(repo.root) as again:
        again.storage.repack(alternatives=recipes.alternatives(again))


def test_data_outside_of_the_repository_keep_the_weights(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    model = mvc.constructed(Conv, 4, dropout=0.5)
    repo.commit(model.state_dict())
    images = make_images(tmp_path / "images", 16)
    recipes.add_data(repo, images, reference=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with (
        pytest.raises(CannotRecord, match="the data are stored outside of mvc: images"),
        mvc.record(repo, model, optimizer, data=images, service=train_images, drop_weights=True),
    ):
        pass
    recorded(repo, model, optimizer, data=images, service=train_images, verify=True)
    weigh(repo, 1e12)
    with mvc.Repository.open(repo.root) as opened:
        assert not opened.storage.repack(alternatives=recipes.alternatives(opened)).plan.dropped
        with pytest.raises(CannotRetrain, match="are stored outside of mvc: images"):
            recipes.drop_weights(opened, ["HEAD"])
        assert opened.storage.stats().dropped == 0


def test_forged_marks_are_damage(chain: Chain) -> None:
    repo, (start, first, _) = chain.repo, chain.ids
    for version, path in ((first, "no\x1b.safetensors"), (start, "model.safetensors")):
        mark_dropped(repo.handle, version, path)
    with pytest.raises(DamagedData, match=r"has no no\\x1b\.safetensors"):
        recipes.store_weights(repo, first, trust=True)
    report = repo.storage.fsck()
    assert {p.versions for p in report.problems} == {(first,), (start,)}
    assert not any(
        "\x1b" in text for text in (*report.notes, *(p.message for p in report.problems))
    )


def give_up_unproven(repo: mvc.Repository, version: CommitId) -> None:
    """As versions of mvc did that took a word for a proof."""
    mark_dropped(repo.handle, version)


def test_weights_stay_that_rest_on_weights_given_up_unproven(chain: Chain) -> None:
    repo, (_, first, second) = chain.repo, chain.ids
    give_up_unproven(repo, first)
    mvc.retrain(repo, second, trust=True)
    with pytest.raises(
        CannotRetrain, match=f"trained from {first.short}, whose .* without a proof"
    ):
        recipes.drop_weights(repo, [second])
    weigh(repo, 1e12)
    with mvc.Repository.open(repo.root) as chain.repo:
        assert not chain.repo.storage.repack(
            alternatives=recipes.alternatives(chain.repo)
        ).plan.dropped
        chain.repo.storage.gc(grace="0")
        assert chain.is_right(2)


FLAGS = [
    dict(zip(("verify", "drop_weights", "price", "outside"), values, strict=True))
    for values in product((True, False), (None, True, False), (None, 1e12), (True, False))
]


PARTS = [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 7))]


@pytest.mark.parametrize("base", ["stored", "given up", "unproven"])
@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_every_version_comes_back_whatever_the_flags_say(
    tmp_path: Path, base: str, spoiled: bool, part: int
) -> None:
    for number, flags in list(enumerate(FLAGS))[part::7]:
        with mvc.Repository.init(tmp_path / f"repo{number}") as repo:
            images = make_images(tmp_path / f"images{number}", 16)
            _story(repo, images, base=base, spoiled=spoiled, **flags)


def _story(
    repo: mvc.Repository, images: Path, *, base: str, spoiled: bool, price: float | None,
    outside: bool, **flags: Any,
) -> None:  # fmt: skip
    """A base, and a training from it with these flags; then all that may give up its weights."""
    chain = Chain(repo, images.parent, 1)
    first = chain.ids[1]
    if base == "given up":
        mvc.retrain(repo, first, trust=True)
        recipes.drop_weights(repo, [first])
    elif base == "unproven":
        give_up_unproven(repo, first)
    if price is not None:
        weigh(repo, price)
    if outside:
        recipes.add_data(repo, images, reference=True)
    with mvc.Repository.open(repo.root) as chain.repo:
        repo = chain.repo
        with suppress(MvcError):
            chain.train(images, **flags)
        if len(chain.ids) < 3:  # refused before it began
            chain.train(images, verify=False)
        newest = chain.ids[2]
        repo.commit({"other": torch.zeros(3)})
        if spoiled:
            repo.storage.repack(interval=1)
            spoil(repo, newest, ".mvc/service/optimizer.safetensors")
    with mvc.Repository.open(repo.root) as chain.repo:
        repo = chain.repo
        for trust in (False, [newest], True, chain.ids):
            with suppress(MvcError):
                mvc.retrain(repo, newest, trust=trust)
            with suppress(MvcError):
                recipes.drop_weights(repo, [newest])
            with suppress(MvcError):
                repo.storage.repack(alternatives=recipes.alternatives(repo))
        if not any(entry.dropped for entry in repo.log(newest, limit=1)):
            shutil.rmtree(images)  # nothing needs it
        assert not (
            outside and not images.exists() and repo.storage.stats().dropped > (base != "stored")
        )
        with suppress(DamagedData):  # what is spoiled is kept
            repo.storage.gc(grace="0")
        for number, version in enumerate(chain.ids):
            with mvc.retraining(repo, version, trust=chain.ids):
                assert chain.is_right(number), (number, flags)
