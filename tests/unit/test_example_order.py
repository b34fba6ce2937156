"""The reference below is written anew from the docstrings, in Python's own integers."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.data import example_order, input_pipeline
from resnet.data.example_order import ClassOrder
from resnet.data.input_pipeline import examples_of_micro_batch
from tests.drawn import shuffled

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
    return shuffled(positions, seed, epoch, num_examples)


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
        ours = shuffled(positions, 2**63 - 1, 10**6, 2**62)
    keys = [reference_key(2**63 - 1, number, 10**6) for number in range(8)]
    assert ours.tolist() == [reference_once(position, 2**31, 2**31, keys)]


def read_by_ranks(
    steps: range,
    num_ranks: int,
    batch: int,
    num_examples: int,
    seed: int,
    classes: ClassOrder | None = None,
) -> list[int]:
    """Returns what all ranks read: their parts of each step one after another."""
    local = batch // num_ranks
    return [
        example
        for step in steps
        for rank in range(num_ranks)
        for example in examples_of_micro_batch(
            step, seed, rank, num_ranks, local, num_examples, classes=classes
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


LABELS = st.lists(st.sampled_from([0, 0, 0, 0, 1, 1, 5]), min_size=1, max_size=200)
SAMPLINGS = st.sampled_from(["balanced", "root"])


def reference_uses(
    labels: list[int], seed: int, sampling: str, num_epochs: int
) -> list[tuple[int, int]]:
    """Returns the examples of a run of some epochs, with the numbers of their uses."""
    num_examples = len(labels)
    members = {
        label: [index for index, other in enumerate(labels) if other == label]
        for label in sorted(set(labels))
    }
    shares = {
        label: int(len(its) ** 0.5 * 2**20) if sampling == "root" else 1
        for label, its in members.items()
    }
    slots: list[tuple[int, int, int]] = []  # Class, place among its slots, and quota.
    end = 0
    for label in members:
        end += shares[label]
        quota = num_examples * end // sum(shares.values()) - len(slots)
        slots += [(label, place, quota) for place in range(quota)]
    run = []
    for epoch in range(num_epochs):
        for slot in reference_order(num_examples, seed, epoch):
            label, place, quota = slots[slot]
            its = members[label]
            use, number = divmod(epoch * quota + place, len(its))
            own = use + reference_mix(label)
            keys = [reference_key(seed, 4000 + stream, own) for stream in range(8)]
            sides = reference_sides(len(its))
            number = reference_once(number, *sides, keys)
            while number >= len(its):
                number = reference_once(number, *sides, keys)
            run.append((its[number], use))
    return run


@settings(max_examples=15)
@given(labels=LABELS, seed=SEEDS, sampling=SAMPLINGS)
def test_the_order_of_classes_is_that_of_the_reference(labels, seed, sampling):
    classes = ClassOrder.of(np.array(labels, np.int32), sampling)
    positions = np.arange(3 * len(labels))
    ours = example_order.examples_at(positions, seed, len(labels), classes)
    expected = reference_uses(labels, seed, sampling, 3)
    assert list(zip(*map(np.ndarray.tolist, ours), strict=True)) == expected


@settings(max_examples=40)
@given(labels=LABELS, seed=SEEDS, sampling=SAMPLINGS, num_epochs=st.integers(1, 9))
def test_each_class_has_its_share_of_each_epoch_and_its_examples_are_used_evenly(
    labels, seed, sampling, num_epochs
):
    array, num_examples = np.array(labels, np.int32), len(labels)
    classes = ClassOrder.of(array, sampling)
    positions = np.arange(num_epochs * num_examples)
    examples, uses = example_order.examples_at(positions, seed, num_examples, classes)
    epochs = examples.reshape(num_epochs, num_examples)
    counts = np.bincount(array)
    weights = np.sqrt(counts) if sampling == "root" else counts > 0
    shares = num_examples * weights / weights.sum()
    for epoch in epochs:
        quotas = np.bincount(array[epoch], minlength=len(counts))
        assert (np.abs(quotas - shares) < 1 + 1e-6).all()
    times = np.bincount(examples, minlength=num_examples)
    for label in set(labels):
        assert np.ptp(times[array == label]) <= 1
    for example in range(num_examples):
        assert sorted(uses[examples == example]) == list(range(times[example]))


@given(labels=st.integers(1, 9).map(lambda count: list(range(5)) * count), seed=SEEDS)
def test_classes_of_the_same_size_have_each_example_once_an_epoch(labels, seed):
    for sampling in ("balanced", "root"):
        classes = ClassOrder.of(np.array(labels, np.int32), sampling)
        positions = len(labels) + np.arange(len(labels))
        ours, uses = example_order.examples_at(positions, seed, len(labels), classes)
        assert sorted(ours) == list(range(len(labels)))
        assert set(uses.tolist()) == {1}


@settings(max_examples=10)
@given(
    labels=st.lists(st.integers(0, 3), min_size=30, max_size=60),
    seed=SEEDS,
    sampling=SAMPLINGS,
    num_ranks=st.tuples(*[st.sampled_from([1, 2, 3, 6])] * 2),
)
def test_sampled_batches_are_the_same_on_any_ranks_wherever_a_run_is_interrupted(
    labels, seed, sampling, num_ranks
):
    classes = ClassOrder.of(np.array(labels, np.int32), sampling)
    sizes = (24, len(labels), seed, classes)
    parts = zip((range(4), range(4, 9)), num_ranks, strict=True)
    read = [read_by_ranks(steps, ranks, *sizes) for steps, ranks in parts]
    positions = np.arange(9 * 24)
    whole, _ = example_order.examples_at(positions, seed, len(labels), classes)
    np.testing.assert_array_equal(np.concatenate(read), whole)


@settings(max_examples=2)
@given(labels=LABELS, seed=SEEDS, sampling=SAMPLINGS)
def test_tensors_are_sampled_as_arrays_are(labels, seed, sampling):
    classes = ClassOrder.of(np.array(labels, np.int32), sampling)
    run = np.array([0, 1, 17, 2**20, 2**40])
    examples, _, uses = input_pipeline.of_run(seed, len(labels), classes)(run)
    ours = example_order.examples_at(run, seed, len(labels), classes)
    np.testing.assert_array_equal((examples, uses), ours)


def test_each_pair_of_place_and_example_is_equally_frequent():
    num_examples, num_epochs = 6, 6_000
    epochs = np.repeat(np.arange(num_epochs), num_examples)
    places = np.tile(np.arange(num_examples), num_epochs)
    examples = shuffled(places, 123, epochs, num_examples)
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
    order = input_pipeline.of_run(seed, num_examples)
    examples, keys, uses = order(tf.constant(run))
    epoch = run // num_examples
    np.testing.assert_array_equal(
        examples, shuffled(run % num_examples, seed, epoch, num_examples)
    )
    np.testing.assert_array_equal(uses, epoch)
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
