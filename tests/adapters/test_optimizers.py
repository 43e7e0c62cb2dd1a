"""Units of an optimizer's step, found in every form in which a training is kept."""

import json
import math

import pytest
import torch

from mvc.adapters.optimizers.states import parsed_state
from mvc.adapters.optimizers.units import steps, units
from mvc.adapters.python.state import from_state
from tests.adapters.training_files import (
    FORMS,
    checkpoint,
    move,
    network,
    paired,
    plain,
    recorded,
    saved,
    two_files,
)


def states(files):
    return [parsed_state(path, file) for path, file in files.items()]


def found(new, old):
    return [unit for step in steps(new, old) for unit in units(step, step.guess.weights)]


def two_groups(model, **options):
    every = list(model.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in every if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
        ],
        **options,
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_step_between_two_versions(form):
    model = network()
    optimizer = two_groups(model, lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    move(model, optimizer)
    old = states(form(model, optimizer))
    move(model, optimizer)
    schedule.step()
    files = form(model, optimizer)
    made = found(states(files), old)
    assert len(made) == len(optimizer.state) == 10
    if form is not two_files:  # whose order is only found by the data
        assert paired(files, made, optimizer) == 10
    for unit in made:
        assert unit.kinds[0] in {"adam", "adamw"}
        assert {*unit.members} == {"exp_avg", "exp_avg_sq", "param"} == {*unit.older}
        assert [(h["lr"], h["step"]) for h in unit.hypers] == [(0.005, 2.0), (0.01, 2.0)]
        assert unit.hypers[0]["betas"] == (0.9, 0.999)
    assert {unit.hypers[0]["weight_decay"] for unit in made} == {0.1, 0.0}
    assert len({id(unit.hypers) for unit in made}) == 2


@pytest.mark.parametrize("form", [checkpoint, recorded, two_files])
def test_two_steps_apart_none_or_back_is_no_unit(form):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    seen = []
    for _ in range(3):
        move(model, optimizer)
        seen.append(states(form(model, optimizer)))
    assert len(found(seen[1], seen[0])) == 10
    assert found(seen[2], seen[0]) == found(seen[0], seen[0]) == found(seen[0], seen[1]) == []


def test_numbers_as_tensors():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25))
    move(model, optimizer)
    old = states(plain(model, optimizer))
    move(model, optimizer)
    (hyper,) = found(states(plain(model, optimizer)), old)[0].hypers
    assert hyper["lr"] == 0.25 and hyper["step"] == 2


def test_names_of_parameters_are_worth_more_than_their_order():
    model = network()
    turned = dict(reversed(list(model.named_parameters())))
    optimizer = torch.optim.Adam(turned.items())
    move(model, optimizer)
    old = states(checkpoint(model, optimizer))
    move(model, optimizer)
    files = checkpoint(model, optimizer)
    assert paired(files, found(states(files), old), optimizer) == 10


def test_masters_beside_the_model_and_a_model_in_parts():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())

    def files():
        low = {name: value.bfloat16() for name, value in model.state_dict().items()}
        masters = [p.detach() for p in model.parameters()]
        parts = {"front": model[:2].state_dict(), "back": model[2:].state_dict()}
        return (
            {"m": from_state({"model": low, "masters": masters, "opt": optimizer.state_dict()})},
            {"m.pt": saved({**parts, "opt": optimizer.state_dict()})},
        )

    move(model, optimizer)
    old = [states(each) for each in files()]
    move(model, optimizer)
    for new, before in zip(files(), old, strict=True):
        assert paired(new, found(states(new), before), optimizer) == 10


def test_parameters_without_a_state_and_groups_that_come_later():
    model = network()
    optimizer = torch.optim.Adam(model[:3].parameters())
    model[3].weight.requires_grad_(False)
    move(model, optimizer)
    old = states(recorded(model, optimizer))
    optimizer.add_param_group({"params": list(model[3:].parameters()), "lr": 0.5})
    move(model, optimizer)
    files = recorded(model, optimizer)
    made = found(states(files), old)
    assert len(made) == 6 == paired(files, made, optimizer)
    later = states(files)
    move(model, optimizer)
    files = recorded(model, optimizer)
    assert len(found(states(files), later)) == 9


def test_an_optimizer_that_counts_no_steps_and_one_that_keeps_nothing():
    model = network()
    for momentum, count in ((0.9, 10), (0, 0)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        move(model, optimizer)
        old = states(checkpoint(model, optimizer))
        move(model, optimizer)
        made = found(states(checkpoint(model, optimizer)), old)
        assert len(made) == count
        assert all({*unit.members} == {"momentum_buffer", "param"} for unit in made)


WILD = {
    "no groups": {"state": {}, "param_groups": None},
    "a group that is none": {"state": {0: {}}, "param_groups": [3]},
    "no parameters": {"state": {}, "param_groups": [{"params": 5}]},
    "parameters of odd kinds": {"state": {}, "param_groups": [{"params": [0.5, None]}]},
    "states of odd kinds": {"state": {0: [1], 1: 2}, "param_groups": [{"params": [0, 1, 2]}]},
    "a list as state": {"state": [], "param_groups": [{"params": []}]},
    "names that do not fit": {
        "state": {0: {"step": 1, "exp_avg": torch.ones(3)}},
        "param_groups": [{"params": [0], "param_names": ["a", "b"], 7: 8}],
    },
    "wild numbers": {
        "state": {0: {"step": 1 << 300, "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}},
        "param_groups": [{"params": [0], "lr": math.nan, "betas": [1 << 80, "x"], "eps": None}],
    },
    "a count that is none": {
        "state": {0: {"step": torch.tensor(math.inf), "exp_avg": torch.ones(3)}},
        "param_groups": [{"params": [0, 0, 0], "lr": torch.ones(3), "betas": list(range(99))}],
    },
    "shapes that differ": {
        "state": {0: {"step": 1, "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(4)}},
        "param_groups": [{"params": [0]}],
    },
}


@pytest.mark.parametrize("name", WILD)
@pytest.mark.parametrize("form", [from_state, saved])
def test_whatever_a_file_says_it_is_read_or_passed_over(name, form):
    state = {"optimizer": WILD[name], "model": {"w": torch.zeros(3)}}
    new = states({"m": form(state)})
    assert found(new, new) == []


def test_a_file_whose_structure_is_broken_holds_nothing():
    whole = from_state({"optimizer": {"state": {}, "param_groups": []}, "w": torch.zeros(2)})
    assert parsed_state("m", whole).optimizers and parsed_state("m", whole).weights
    header = whole.skeleton()
    for old, new in ((b"version", b"verzion"), (b"dict", b"dyct"), (b"{}", b'{"torch":"x"}')):
        text = json.loads(header[8:])
        text["__metadata__"]["mvc"] = text["__metadata__"]["mvc"].replace(
            old.decode(), new.decode()
        )
        broken = json.dumps(text).encode()
        whole.skeleton = lambda data=broken: len(data).to_bytes(8, "little") + data
        state = parsed_state("m", whole)
        assert not state.optimizers and not state.weights
