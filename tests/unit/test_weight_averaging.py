import numpy as np

from resnet.checkpoint.tensors import RANK_BATCH_NORM, Checkpoint
from resnet.checkpoint.weight_averaging import mean_of_weights


def checkpoint(step: int, kernel: float, num_ranks: int = 2) -> Checkpoint:
    tensors = {
        "model/stem/kernel": np.full((2, 2), kernel, np.float32),
        "model/stem/moving_variance": np.float32([10 * kernel]),
        "ema/stem/kernel": np.full((2, 2), -kernel, np.float32),
        "velocity/stem/kernel": np.full((2, 2), 100 * kernel, np.float32),
        RANK_BATCH_NORM: np.full((num_ranks, 1), 5, np.float32),
    }
    return Checkpoint(step, tensors, {"num_ranks": num_ranks})


def test_weights_and_statistics_are_the_mean_the_rest_is_of_the_last():
    saved = [checkpoint(10, 1.0), checkpoint(20, 2.0), checkpoint(30, 6.0, 4)]
    mean = mean_of_weights(iter(saved))
    assert mean.step == 30
    assert mean.metadata == {"num_ranks": 4}
    assert {name: value.ravel().tolist() for name, value in mean.tensors.items()} == {
        "model/stem/kernel": [3.0] * 4,
        "model/stem/moving_variance": [30.0],
        "ema/stem/kernel": [-3.0] * 4,
        "velocity/stem/kernel": [600.0] * 4,
    }
    assert all(value.dtype == np.float32 for value in mean.tensors.values())
    assert mean.tensors["model/stem/kernel"].shape == (2, 2)


def test_the_mean_of_one_is_that_one():
    one = checkpoint(10, 0.1)
    mean = mean_of_weights([one])
    for name, value in mean.tensors.items():
        np.testing.assert_array_equal(value, one.tensors[name])


def test_small_differences_are_not_lost_in_the_sum():
    # The sum of so many in float32 would be off by more than a unit in the last place.
    values = np.random.default_rng(0).normal(1000, 1, 100).astype(np.float32)
    mean = mean_of_weights(checkpoint(step, one) for step, one in enumerate(values))
    expected = np.float32(values.astype(np.float64).mean())
    np.testing.assert_array_equal(mean.tensors["model/stem/kernel"], expected)
