"""Ranks divide Muon's updates, and get what each of them would compute alone."""

import numpy as np
import pytest

from resnet.optim import muon
from tests.parallel.train_some_steps import train


@pytest.mark.ranks(3)
def test_divided_updates_are_those_of_one_and_the_same_bits_on_all_ranks(
    communicator, records, monkeypatch
):
    computed = []

    orthogonalized = muon.orthogonalized

    def counted(matrix, dtype):
        computed.append(matrix.shape)
        return orthogonalized(matrix, dtype)

    by_ranks = muon.orthogonalized_by_ranks
    monkeypatch.setattr(
        muon,
        "orthogonalized_by_ranks",
        lambda matrices, dtype, _, name: by_ranks(matrices, dtype, None, name),
    )
    alone = train(communicator, records, False, optimizer="muon")
    monkeypatch.setattr(muon, "orthogonalized_by_ranks", by_ranks)
    monkeypatch.setattr(muon, "orthogonalized", counted)
    divided = train(communicator, records, False, optimizer="muon")
    for kind in ("weights", "velocities"):
        for rank in (1, 2):
            np.testing.assert_array_equal(divided[kind][rank], divided[kind][0])
    # TensorFlow orders the sums of another graph in another way.
    np.testing.assert_allclose(divided["weights"][0], alone["weights"][0], atol=1e-6)
    counts = communicator.allgather(np.array([len(computed)]))
    assert sum(counts) == 7  # The convolutions.
    assert all(counts)
    assert (divided["bytes_sent"] > alone["bytes_sent"]).all()
