"""The reference below is written anew from the docstrings, in Python's own integers."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.data import example_order, input_pipeline
from resnet.data.input_pipeline import examples_of_micro_batch

SEEDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 10**6)
WORD = 2**32


def reference_mix(x: int) -> int:
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) % WORD
    return x ^ (x >> 16)


def reference_key(seed: int, stream: int, epoch: int) -> int:
    low, high = seed % WORD, seed // WORD
    key = reference_mix((low + stream * 0x9E3779B9) % WORD)
    return reference_mix((reference_mix(key ^ high) + epoch) % WORD)


def reference_sides(num_examples: int) -> tuple[int, int]:
    a = 1
    while a * a < num_examples:
        a += 1
    b = 1
    while a * b < num_examples:
        b += 1
    return a, b


def reference_once(x: int, a: int, b: int, keys: list[int]) -> int:
    right, left = divmod(x, a)
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + reference_mix(left ^ key)) % b
        else:
            left = (left + reference_mix(right ^ key)) % a
    return left + a * right


def reference_order(num_examples: int, seed: int, epoch: int) -> list[int]:
    sides = reference_sides(num_examples)
    keys = [reference_key(seed, number, epoch) for number in range(8)]
    order = []
    for position in range(num_examples):
        example = reference_once(position, *sides, keys)
        while example >= num_examples:
            example = reference_once(example, *sides, keys)
        order.append(example)
    return order


def order(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    positions = np.arange(num_examples, dtype=np.int64)
    return example_order.shuffled(positions, seed, epoch, num_examples)


@settings(max_examples=30)
@given(num_examples=st.integers(1, 3000), seed=SEEDS, epoch=EPOCHS)
@hypothesis.example(num_examples=1_281_167, seed=2**63 - 1, epoch=89)
def test_each_epoch_is_a_permutation(num_examples, seed, epoch):
    ours = order(num_examples, seed, epoch)
    assert ours.dtype == np.int64
    np.testing.assert_array_equal(np.sort(ours), np.arange(num_examples))


@settings(max_examples=20)
@given(num_examples=st.integers(1, 300), seed=SEEDS, epoch=EPOCHS)
def test_the_order_is_that_of_the_reference(num_examples, seed, epoch):
    assert order(num_examples, seed, epoch).tolist() == reference_order(
        num_examples, seed, epoch
    )


@pytest.mark.parametrize("position", [0, 2**62 - 1])
def test_the_largest_set_stays_within_an_int64(position):
    positions = np.array([position], np.int64)
    with np.errstate(over="raise"):
        ours = example_order.shuffled(positions, 2**63 - 1, 10**6, 2**62)
    keys = [reference_key(2**63 - 1, number, 10**6) for number in range(8)]
    assert ours.tolist() == [reference_once(position, 2**31, 2**31, keys)]


def read_by_ranks(
    steps: range, num_ranks: int, batch: int, num_examples: int, seed: int
) -> list[int]:
    """Returns what all ranks read: their parts of each step one after another."""
    local = batch // num_ranks
    return [
        example
        for step in steps
        for rank in range(num_ranks)
        for example in examples_of_micro_batch(
            step, seed, rank, num_ranks, local, num_examples
        )
    ]


@settings(max_examples=20)
@given(
    num_examples=st.integers(20, 300),
    batch=st.integers(1, 100).map(lambda number: 6 * number),
    seed=SEEDS,
    num_steps=st.integers(1, 12),
    stop=st.integers(0, 12),
    num_ranks=st.tuples(*[st.sampled_from([1, 2, 3, 6])] * 2),
)
def test_each_epoch_has_each_example_once_on_any_ranks_wherever_a_run_is_interrupted(
    num_examples, batch, seed, num_steps, stop, num_ranks
):
    stop = min(stop, num_steps)
    read = []
    for steps, ranks in zip(
        (range(stop), range(stop, num_steps)), num_ranks, strict=True
    ):
        read += read_by_ranks(steps, ranks, batch, num_examples, seed)
    assert len(read) == num_steps * batch
    epochs = range(len(read) // num_examples + 1)
    orders = [order(num_examples, seed, epoch) for epoch in epochs]
    np.testing.assert_array_equal(read, np.concatenate(orders)[: len(read)])


def test_each_pair_of_place_and_example_is_equally_frequent():
    num_examples, num_epochs = 6, 6_000
    epochs = np.repeat(np.arange(num_epochs), num_examples)
    places = np.tile(np.arange(num_examples), num_epochs)
    examples = example_order.shuffled(places, 123, epochs, num_examples)
    counts = np.zeros((num_examples, num_examples))
    np.add.at(counts, (places, examples), 1)
    expected = num_epochs / num_examples
    chi_square = np.sum((counts - expected) ** 2) / expected
    # (6 - 1)**2 = 25 degrees of freedom, by permutations: times 6 / 5 of the sum over
    # the whole table. Above 66 with a probability of about 1 in 100,000.
    assert chi_square * (num_examples - 1) / num_examples < 66


@settings(max_examples=3)
@given(
    num_examples=st.integers(1, 10_000),
    seed=SEEDS,
    positions=st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
)
def test_tensors_are_shuffled_as_arrays_are(num_examples, seed, positions):
    run = np.array(positions, np.int64)
    examples, keys = input_pipeline.of_run(seed, num_examples)(tf.constant(run))
    epoch = run // num_examples
    np.testing.assert_array_equal(
        examples, example_order.shuffled(run % num_examples, seed, epoch, num_examples)
    )
    stream = input_pipeline._AUGMENTATION_STREAM
    np.testing.assert_array_equal(keys, example_order.mix_seed(seed, stream, epoch))


def test_epochs_and_seeds_have_orders_and_flips_of_their_own():
    variants = [(seed, epoch) for seed in (0, 2**32, 2**62) for epoch in range(4)]
    orders = [order(1000, seed, epoch) for seed, epoch in variants]
    for index, ours in enumerate(orders):
        for other in orders[:index]:
            # Two random permutations agree in one place on average, and in ten or more
            # in one of ten million pairs (Poisson).
            assert np.count_nonzero(ours == other) < 10
    examples = np.arange(2000)
    first, second, third = (
        example_order.alternating_flips(examples, 2**40 + 7, epoch)
        for epoch in range(3)
    )
    np.testing.assert_array_equal(second, ~first)
    np.testing.assert_array_equal(third, first)
    other = example_order.alternating_flips(examples, 2**40 + 8, 0)
    # 2,000 fair coins: standard deviation 22, and five of them. Neighbors are
    # independent.
    for coins in (first, other == first, first[1:] == first[:-1]):
        assert abs(coins.sum() - 1000) < 110
