import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from digits import (  # noqa: E402
    drift_counts,
    drift_stream,
    drift_total,
    load_images,
    number_images,
)


def test_drift_counts_give_the_known_answers_of_mnist():
    total = drift_total(150, 86, 0.5)
    assert (total, 150 * 86 - total) == (3225, 9675)
    counts = drift_counts(total, 150)
    assert counts[:12] == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert counts[-6:] == [41, 42, 42, 42, 43, 43]
    assert sum(counts) == total


def test_drift_counts_of_a_tiny_stream():
    assert drift_total(4, 4, 0.5) == 4
    assert drift_counts(4, 4) == [0, 1, 1, 2]


def test_drift_total_is_exact_where_floats_would_round_up():
    assert drift_total(100, 100, 0.14) == 700


def test_images_are_scaled():
    images, labels = load_images()
    assert images.shape == (1797, 1, 28, 28)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_class_is_absent_offline_and_comes_first_in_each_online_batch():
    stream = drift_stream(3, batches=10, batch_size=80)
    assert not (stream.offline[1] == 3).any()
    assert set(stream.offline[1].tolist()) == set(range(10)) - {3}
    assert stream.drifting == drift_counts(200, 10)
    for count, (images, labels) in zip(stream.drifting, stream.online, strict=True):
        assert images.shape == (80, 1, 28, 28)
        assert images.min() >= 0 and images.max() <= 1
        assert (labels[:count] == 3).all()
        assert not (labels[count:] == 3).any()


def test_no_offline_digit_is_online():
    stream = drift_stream(0, batches=4)
    offline = {image.numpy().tobytes() for image in stream.offline[0]}
    online = {image.numpy().tobytes() for images, _ in stream.online for image in images}
    assert len(online) > 300
    assert not offline & online


def test_streams_repeat_by_seed_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, again, other = (drift_stream(batches=3, seed=s) for s in (2, 2, 3))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.offline[0], again.offline[0])
    for (a, la), (b, lb) in zip(first.online, again.online, strict=True):
        assert torch.equal(a, b) and torch.equal(la, lb)
    assert not torch.equal(first.offline[0], other.offline[0])


def test_a_long_stream_shows_the_digits_again():
    stream = drift_stream(0, batches=60)
    assert len(stream.online) == 60
    seen = [image.numpy().tobytes() for images, _ in stream.online for image in images]
    assert len(set(seen)) < len(seen)


def test_parameters_out_of_range_are_refused():
    with pytest.raises(ValueError, match="label=10"):
        drift_stream(10)
    with pytest.raises(ValueError, match="share=0"):
        drift_stream(1, share=0)


def test_number_images_have_a_hundred_classes():
    images, labels = number_images(3000, 16, seed=1)
    assert images.shape == (3000, 3, 16, 16)
    assert set(labels.tolist()) == set(range(100))
