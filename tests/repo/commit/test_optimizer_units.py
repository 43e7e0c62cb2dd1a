"""Which weights an optimizer moved, where only the data of two versions say it."""

import pytest
import torch

from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import CommitRequest
from mvc.repo.commit.units import units_of
from mvc.repo.lookup import manifests
from mvc.state import StateFile
from tests.adapters.training_files import checkpoint, move, network, paired, two_files

OPTIMIZERS = {
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, nesterov=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01),
    "rmsprop, momentum": lambda ps: torch.optim.RMSprop(ps, lr=0.01, momentum=0.9),
}


def store(context, files):
    request = CommitRequest(contents={path: StateFile(file) for path, file in files.items()})
    return commit(context.store, context.config, context.recent, request).commit


def layers_backwards(model):
    """A group for each layer, from the last to the first."""
    return [{"params": list(layer.parameters())} for layer in reversed(model)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("form", [two_files, checkpoint])
def test_the_data_say_which_weights_an_optimizer_moved(context, form, kind):
    model = network()
    optimizer = OPTIMIZERS[kind](layers_backwards(model))
    for _ in range(3):
        move(model, optimizer)
    parent = manifests.of_commit(context.store, store(context, form(model, optimizer)).id)
    for _ in range(2):
        move(model, optimizer)
        files = form(model, optimizer)
        made = units_of(context.store, context.recent, files, parent)
        assert paired(files, made.units, optimizer) == 10
        parent = manifests.of_commit(context.store, store(context, files).id)
        for path, state in made.states.items():
            context.recent.trainings.states[path, parent.by_path[path].content_id] = state


def test_a_commit_without_an_optimizer_has_no_units(context):
    files = {"m.pt": checkpoint(network(), torch.optim.SGD(network().parameters()))["last.pt"]}
    nothing = manifests.EMPTY
    assert not units_of(context.store, context.recent, files, nothing).units
    assert not units_of(context.store, context.recent, {}, nothing).units
