"""The ten models: what changes from each base, and that an interruption changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mvc.errors import WrongUsage
from reproduce.derived.approaches import changed_tensors
from reproduce.derived.flow import BASES, RELATIONS, Experiment, Settings, record
from tests.reproduce.derived.tiny import (
    LAST,
    SETTINGS,
    STATISTICS,
    TINY,
    experiment,
    images,
    recorded,
)

CHANGED = {
    "version": {"conv.weight", "norm.weight", "norm.bias"} | STATISTICS | LAST,
    "fine-tuned": STATISTICS | LAST,
    "frozen": LAST,
    "grafted": LAST,
}


def bits(models):
    return {
        name: {key: value.numpy().tobytes() for key, value in models.state(name).items()}
        for name in BASES
    }


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_changes_from_every_base(tmp_path, relation):
    with recorded(tmp_path, relation) as models:
        for name, base in BASES.items():
            if base is not None:
                changed = changed_tensors(models.state(base), models.state(name))
                assert set(changed) == CHANGED[relation], name


def test_models_differ_only_by_relation(tmp_path):
    """All relations begin at one U1; grafted has the last layers of 'version'."""
    with recorded(tmp_path, "grafted") as grafted, recorded(tmp_path) as versions:
        first = versions.state("U1")
        assert not changed_tensors(first, grafted.state("U1"))
        for name in BASES:
            ours, theirs = grafted.state(name), versions.state(name)
            assert not changed_tensors(first | {key: theirs[key] for key in LAST}, ours)


def test_an_interrupted_recording_goes_on(tmp_path):
    def interrupt(what, done, total):
        if (what, done, total) == (f"{experiment().name}: training", 6, 10):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(experiment(), tmp_path / "a", interrupt)
    said = []
    with record(experiment(), tmp_path / "a", lambda *words: said.append(words)) as models:
        assert [done for _, done, _ in said] == [6, 7, 8, 9]
        with recorded(tmp_path / "b") as whole:
            assert bits(models) == bits(whole)
    with record(experiment(), tmp_path / "a", interrupt):  # nothing is trained again
        pass


def test_other_settings_are_other_models(tmp_path):
    with record(experiment(), tmp_path) as models:
        one = bits(models)
    changed = Settings(batches=1, batch_size=4, size=32, trained=True)
    with record(experiment(settings=changed), tmp_path) as models:
        other = bits(models)
    assert all(one[name] != other[name] for name in BASES)


def test_the_nodes_data_are_biased():
    """The server sees all classes, nodes the first half and no image of the server."""
    made = experiment()
    server, node = made.rows("U2"), made.rows("U3.1.1")
    labels = made.data.labels
    assert set(labels[server]) == {0, 1, 2, 3}
    assert set(labels[node]) == {0, 1}
    assert not set(server) & set(node)
    assert list(made.rows("U3.1.2")) != list(node)
    batches = list(made.samples("U2"))
    assert [tuple(pictures.shape) for pictures, _ in batches] == [(4, 3, 32, 32)] * 2
    for pictures, _ in batches:
        assert -1 <= float(pictures.min()) < 0 < float(pictures.max()) <= 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(WrongUsage, match="there is no relation extended: it must be one of vers"):
        experiment("extended")
    words = replace(images(), name="words", kind="texts")
    with pytest.raises(WrongUsage, match="words holds no images of at most 1000 classes"):
        Experiment.of(TINY, "version", words, SETTINGS)
    with pytest.raises(WrongUsage, match="noise has 32 images for U2, but a batch is 64"):
        experiment(settings=replace(SETTINGS, batch_size=64))


@pytest.mark.parametrize(
    ("name", "value"), [("batches", 0), ("batch_size", 1), ("size", 31), ("seed", -1)]
)
def test_settings_out_of_range(name, value):
    with pytest.raises(WrongUsage, match=f"{name} is {value}: it must be at least"):
        Settings(**{name: value})
