from itertools import islice

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from safetensors.torch import load_file  # noqa: E402

import make_series  # noqa: E402


def bits(state):
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def test_the_digits_series_repeats_bit_for_bit():
    first, again = (
        [bits(state) for state in islice(make_series.digit_versions(3, epochs=0), 2)]
        for _ in range(2)
    )
    assert first == again
    assert all(first[0][name] != first[1][name] for name in first[0])


def test_the_digits_series_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    versions = sum(1 for _ in make_series.digit_versions(2, epochs=0))
    assert versions == 2
    assert torch.equal(torch.random.get_rng_state(), before)


def test_heads_change_two_tensors_and_whole_steps_the_buffers_too():
    states = make_series.resnet_versions(batch_size=4, size=32, warm_up=1)
    base, head, _, whole = (bits(state) for state in islice(states, 4))
    assert [name for name in base if base[name] != head[name]] == ["fc.weight", "fc.bias"]
    changed = {name for name in base if head[name] != whole[name]}
    assert {name for name in base if "running_" in name or "num_batches" in name} <= changed
    assert {"conv1.weight", "layer4.2.conv3.weight", "fc.weight"} <= changed


def test_the_plan_has_the_promised_kinds():
    kinds = make_series.RESNET_PLAN
    assert (kinds.count("base"), kinds.count("head"), kinds.count("whole")) == (1, 5, 3)


@pytest.mark.parametrize("file_format", ["safetensors", "pt"])
def test_files_hold_the_states_and_a_used_folder_is_refused(tmp_path, file_format):
    states = [{"a": torch.tensor([1.0, -0.0])}, {"a": torch.tensor([2.0, float("nan")])}]
    written = make_series.write_series(iter(states), tmp_path, file_format)
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [f"0000.{file_format}", f"0001.{file_format}"]
    assert written == sum(path.stat().st_size for path in paths)
    for path, state in zip(paths, states, strict=True):
        read = load_file(path) if file_format == "safetensors" else torch.load(path)
        assert bits(read) == bits(state)
    with pytest.raises(FileExistsError, match="not empty"):
        make_series.write_series(iter(states), tmp_path, file_format)


def test_one_version_is_no_series():
    with pytest.raises(ValueError, match="at least 2"):
        next(make_series.digit_versions(1))
