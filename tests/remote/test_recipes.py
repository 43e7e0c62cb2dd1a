"""Recipes, data sets and weights that were given up, in a transfer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mvc
import mvc.recipes as recipes
from mvc.api import Gone
from mvc.api.repository import Repository
from mvc.errors import (
    CannotRetrain,
    NotTrusted,
    StateForgotten,
    WeightsDropped,
)
from mvc.ids import CommitId
from mvc.remote.receiving.receiver import receive
from mvc.remote.sending.sender import send
from mvc.remote.transport import Wanted
from mvc.repo.lookup import availability
from mvc.repo.lookup.availability import Dropped
from tests.recipes.by_hand import drop
from tests.recipes.trainings import Conv, make_images, train_images

pytestmark = pytest.mark.usefixtures("prepared", "one_thread")


class Story:
    """An author with a base and a version that was trained from it, and a bare ``server``."""

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root / "server")
        self.server = Repository.init(self.url, bare=True)
        self.author = Repository.init(root / "author")
        self.author.remotes.add("origin", self.url)
        self.images = make_images(root / "images", 512)
        (self.images / "more").write_bytes(random.Random(1).randbytes(1_000_000))
        self._open = [self.server, self.author]
        torch.manual_seed(1)
        self.model = mvc.constructed(Conv, 64, dropout=0.5)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.base = self.author.commit(self.model.state_dict(), message="base").id
        self.trained = self.train()
        self.state = {n: v.clone() for n, v in self.model.state_dict().items()}

    def train(self) -> CommitId:
        record = mvc.record(
            self.author,
            self.model,
            self.optimizer,
            data=self.images,
            service=train_images,
            verify=False,
        )
        with record as run:
            run.train(batch=256)
        assert run.result is not None
        return run.result.id

    @property
    def data(self) -> CommitId:
        return recipes.data_set(self.author, "images").version

    def keep_data_at_home(self) -> None:
        self.author.remotes.add("origin", self.url, force=True, data="false")

    def clone(self, name: str, states: str = "all") -> Repository:
        made = mvc.clone(self.url, self.root / name, states=states)
        self._open.append(made)
        return made

    def is_right(self, state: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(state[name], value) for name, value in self.state.items())

    def close(self) -> None:
        for repo in self._open:
            repo.close()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    made.close()


def dropped(repo: Repository, id_: CommitId) -> Dropped | None:
    repo.handle.store.fresh()
    return availability.dropped(repo.handle.store, id_)


def sound(repo: Repository) -> bool:
    return repo.storage.fsck(full=True).sound


def test_a_recipe_alone_reaches_a_third_repository_and_is_trained_again_there(
    story: Story,
) -> None:
    drop(story.author, story.trained)
    story.author.storage.gc(grace="0")
    pushed = story.author.push()
    weights_bytes = sum(v.numel() * v.element_size() for v in story.state.values())
    size = sum(file.stat().st_size for file in story.images.iterdir())
    assert pushed.bytes < size + 1.5 * weights_bytes
    assert pushed.at_home == ()
    third = story.clone("third")
    for repo in (story.server, third):
        gone = dropped(repo, story.trained)
        assert gone is not None and gone.proven_ns is None and not gone.stored
        assert "not proven" in str(gone)
        with pytest.raises(WeightsDropped, match="were dropped"):
            repo.checkout(story.trained)
        assert sound(repo)
    assert set(recipes.code(third, story.trained)) == set(recipes.code(story.author, story.trained))
    with pytest.raises(NotTrusted):
        mvc.retrain(third, story.trained)
    done = mvc.retrain(third, story.trained, trust=True)
    assert story.is_right(done.state)
    recipes.store_weights(third, story.trained, trust=True)
    assert story.is_right(third.checkout(story.trained))
    assert sound(third)


def test_proofs_do_not_travel(story: Story) -> None:
    mvc.retrain(story.author, story.trained, trust=True)
    story.author.push()
    third = story.clone("third")
    assert story.is_right(third.checkout(story.trained))
    with pytest.raises(CannotRetrain, match="is not proven"):
        recipes.drop_weights(third, [story.trained])
    mvc.retrain(third, story.trained, trust=True)
    recipes.drop_weights(third, [story.trained])
    third.storage.gc(grace="0")
    assert dropped(third, story.trained) is not None and sound(third)


def test_who_has_the_weights_keeps_them(story: Story) -> None:
    story.author.push()
    bob = story.clone("bob")
    drop(story.author, story.trained)
    story.author.storage.gc(grace="0")
    second = story.train()
    story.author.push()
    bob.fetch()
    for repo in (story.server, bob):
        assert dropped(repo, story.trained) is None
        assert story.is_right(repo.checkout(story.trained))
        assert repo.checkout(second) and sound(repo)


def test_weights_that_another_one_has_are_fetched(story: Story) -> None:
    story.author.push()
    drop(story.author, story.trained)
    story.author.storage.gc(grace="0")
    with pytest.raises(WeightsDropped):
        story.author.checkout(story.trained)
    assert story.author.fetch(versions=[story.trained]).versions == 1
    assert dropped(story.author, story.trained) is None
    assert story.is_right(story.author.checkout(story.trained))
    drop(story.author, story.trained)
    story.server.handle.store.fresh()
    drop(story.server, story.trained)
    for repo in (story.author, story.server):
        repo.storage.gc(grace="0")
    assert story.author.fetch(versions=[story.trained]).versions == 0
    assert dropped(story.author, story.trained) is not None and sound(story.author)


def test_a_base_that_was_forgotten_here_stops_no_fetch(story: Story) -> None:
    """What was trained from it, and has no weights, comes without its state; later with both."""
    story.author.push()
    ada = story.clone("ada")
    ada.commit({"w": torch.ones(3)}, message="mine")
    ada.storage.forget(keep_last=1)
    ada.storage.gc(grace="0")
    second = story.train()
    drop(story.author, second)
    third = story.author.commit(story.state, message="third").id
    story.author.push()
    for _ in range(2):
        ada.fetch()
        assert ada.find("origin/main") == third and story.is_right(ada.checkout(third))
        assert sound(ada)
    with pytest.raises(StateForgotten) as error:
        mvc.retrain(ada, second, trust=True)
    assert f"'mvc fetch origin {second.short}' fetches the state" in str(error.value.hint)
    ada.storage.gc(grace="0")
    ada.fetch(versions=[second])
    assert dropped(ada, second) is not None and not isinstance(
        ada.availability(story.trained), Gone
    )
    assert mvc.retrain(ada, second, trust=True).state and sound(ada)


def test_a_clone_with_few_states_takes_along_what_makes_the_weights(story: Story) -> None:
    drop(story.author, story.trained)
    story.author.push()
    few = story.clone("few", states="last:1")
    assert not isinstance(few.availability(story.base), Gone) and not isinstance(
        few.availability(story.data), Gone
    )
    assert story.is_right(mvc.retrain(few, story.trained, trust=True).state)
    none = story.clone("none", states="none")
    assert isinstance(none.availability(story.base), Gone)
    none.fetch(versions=[story.trained])
    assert (
        not isinstance(none.availability(story.base), Gone)
        and dropped(none, story.trained) is not None
    )
    assert story.is_right(mvc.retrain(none, story.trained, trust=True).state)
    assert sound(few) and sound(none)


def test_data_that_stay_at_home(story: Story) -> None:
    """The weights go; training again is refused where the data are not, and asked for at home."""
    story.keep_data_at_home()
    pushed = story.author.push()
    assert pushed.at_home == (story.data,)
    third = story.clone("third")
    assert story.is_right(third.checkout(story.trained))
    for repo in (story.server, third):
        assert isinstance(repo.availability(story.data), Gone) and sound(repo)
        with pytest.raises(StateForgotten, match=story.data.short):
            mvc.retrain(repo, story.trained, trust=True)
        with pytest.raises(StateForgotten, match=story.data.short):
            recipes.drop_weights(repo, [story.trained])
    assert story.is_right(mvc.retrain(story.author, story.trained, trust=True).state)
    story.author.push(states=[story.data])  # once it is named, it goes
    third.fetch(versions=[story.data])
    assert story.is_right(mvc.retrain(third, story.trained, trust=True).state)


def test_weights_that_need_data_from_home_must_be_stored(story: Story) -> None:
    story.keep_data_at_home()
    drop(story.author, story.trained)
    for _ in range(2):
        with pytest.raises(WeightsDropped, match=story.trained.short) as error:
            story.author.push()
        assert story.data.short in str(error.value)
        assert f"mvc retrain {story.trained.short}" in str(error.value.hint)
    assert not story.server.refs()
    recipes.store_weights(story.author, story.trained, trust=True)
    story.author.push()
    assert story.is_right(story.server.checkout(story.trained))


@pytest.mark.parametrize("lacking", ["base", "data"])
def test_a_receiver_refuses_weights_that_nothing_makes_again(story: Story, lacking: str) -> None:
    drop(story.author, story.trained)
    home = {getattr(story, lacking)}
    story.author.handle.store.fresh()
    wanted = Wanted(versions=(story.trained,))
    with pytest.raises(WeightsDropped, match=getattr(story, lacking).short):
        for each in send(
            story.author.handle.store, story.author.handle.config, wanted, without=home
        ):
            receive(story.server.handle.store, story.server.handle.config, each)
    assert not story.server.handle.store.fresh().state_marks(weights=True)


def test_a_base_that_did_not_come_along(story: Story) -> None:
    story.author.push()
    few = story.clone("few", states="last:1")
    assert story.is_right(few.checkout(story.trained))
    with pytest.raises(StateForgotten, match=story.base.short) as error:
        mvc.retrain(few, story.trained, trust=True)
    assert f"'mvc fetch origin {story.base.short}' fetches the state" in str(error.value.hint)
    assert not isinstance(few.availability(story.data), Gone)  # the newest of its tag
    few.fetch(versions=[story.base])
    assert story.is_right(mvc.retrain(few, story.trained, trust=True).state)


def test_a_data_set_by_reference(story: Story) -> None:
    """Only the reference goes; a push names what can be trained only where the data lie."""
    author = story.author
    folder = make_images(story.root / "outside", 16, seed=3)
    recipes.add_data(author, folder, name="outside", reference=True)
    story.images = folder
    second = story.train()
    state = {n: v.clone() for n, v in story.model.state_dict().items()}
    author.push()
    third = story.train()
    author.push()
    elsewhere = story.clone("elsewhere")
    assert all(torch.equal(elsewhere.checkout(second)[n], v) for n, v in state.items())
    assert recipes.data_set(elsewhere, "outside").source == str(folder)
    folder.rename(story.root / "gone")
    with pytest.raises(CannotRetrain, match="data set outside is missing"):
        mvc.retrain(elsewhere, third, trust=True)
    (story.root / "gone").rename(folder)
    assert mvc.retrain(elsewhere, third, trust=True).state


def test_a_data_set_travels_once(story: Story) -> None:
    first = story.author.push().bytes
    story.train()
    again = story.author.push().bytes
    size = sum(file.stat().st_size for file in story.images.iterdir())
    assert first > size > again
    assert recipes.data_set(story.server, "images").version == story.data
