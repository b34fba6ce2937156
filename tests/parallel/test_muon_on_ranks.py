"""Ranks divide Muon's updates, and get what each of them would compute alone."""

import numpy as np
import pytest
import tensorflow as tf

from resnet.optim import muon
from tests.parallel.train_some_steps import train


@pytest.mark.ranks(3)
def test_divided_updates_are_the_same_bits_on_all_ranks(
    communicator, records, monkeypatch
):
    computed = []
    orthogonalized = muon.orthogonalized

    def counted(matrix, dtype):
        computed.append(matrix.shape)
        return orthogonalized(matrix, dtype)

    monkeypatch.setattr(muon, "orthogonalized", counted)
    divided = train(communicator, records, False, optimizer="muon")
    for kind in ("weights", "velocities"):
        for rank in (1, 2):
            np.testing.assert_array_equal(divided[kind][rank], divided[kind][0])
    counts = communicator.allgather(np.array([len(computed)]))
    assert sum(counts) == 7  # The convolutions.
    assert all(counts)
    gradients = train(communicator, records, False, optimizer="momentum")
    assert (divided["bytes_sent"] > gradients["bytes_sent"]).all()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_ranks_get_the_bits_that_each_of_them_would_compute(communicator, dtype):
    generator = np.random.default_rng(0)
    shapes = [(27, 16), (8, 24), (5, 5), (1, 3)]
    matrices = [tf.constant(generator.normal(size=one), tf.float32) for one in shapes]

    @tf.function
    def results(collectives):
        return muon.orthogonalized_by_ranks(matrices, dtype, collectives, "muon")[0]

    found, expected = results(communicator.collectives), results(None)
    assert all(one.dtype == dtype for one in found)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
