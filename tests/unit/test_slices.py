"""How buckets are cut into slices, and what becomes of the slices' residuals."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resnet.checkpoint import merged_ranks
from resnet.config.compression import CompressionSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange import gathered, sliced
from resnet.exchange.codecs import slices
from resnet.exchange.codecs.slices import Piece
from resnet.exchange.compressed import CompressedExchange
from resnet.hardware.placement import ProcessInfo

ALONE = Communicator(ProcessInfo())


def _merge(saved, shapes, dense_below=0):
    """Returns what one rank begins with."""
    part = merged_ranks.PartOfMean.of(enumerate(saved), len(saved))
    return merged_ranks.merge(part, ALONE, shapes, dense_below)


def test_slices_are_equal_parts_of_all_vectors():
    assert slices.cut([6, 2, 4], 3, 1) == [
        [Piece(0, 4)],
        [Piece(0, 2), Piece(1, 2)],
        [Piece(2, 4)],
    ]
    assert slices.cut([10], 1, 5) == [[Piece(0, 10)]]


def test_pieces_begin_at_multiples_of_the_alignment():
    assert slices.cut([100], 3, 8) == [[Piece(0, 32)], [Piece(0, 32)], [Piece(0, 36)]]


def test_there_may_be_fewer_values_than_slices():
    assert slices.cut([2], 4, 1) == [[], [Piece(0, 1)], [], [Piece(0, 1)]]
    assert slices.cut([3], 3, 8) == [[], [], [Piece(0, 3)]]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from([1, 5, 8, 24]),
)
def test_the_pieces_are_all_vectors_in_their_order(sizes, num_slices, alignment):
    found = slices.cut(sizes, num_slices, alignment)
    assert len(found) == num_slices
    pieces = [piece for one in found for piece in one]
    assert [piece.vector for piece in pieces] == sorted(p.vector for p in pieces)
    for vector, size in enumerate(sizes):
        own = [piece.size for piece in pieces if piece.vector == vector]
        assert sum(own) == size
        assert min(own) > 0
        assert all(one % alignment == 0 for one in own[:-1])
    for one in found:
        size = sliced.num_values(one)
        assert abs(size - sum(sizes) / num_slices) <= alignment + 1


def test_the_alignment_keeps_bytes_and_norms_whole():
    def of(size: int = 5000, **settings) -> int:
        return slices.alignment(CompressionSettings(**settings), size)

    assert of(method="topk") == of(method="bf16") == 1
    assert of(method="terngrad") == 5
    assert of(method="qsgd") == 8
    assert of(method="qsgd", qsgd_bucket=1024) == 1024
    assert of(method="qsgd", qsgd_bucket=100) == 200
    assert of(method="qsgd", qsgd_bucket=5000) == 8  # One norm for the vector.


def test_what_slices_lacked_becomes_a_part_of_all_residuals():
    sizes = {"residual/a": [3], "residual/b": [gathered.BUCKET_VALUES]}
    draw = np.random.default_rng(0)
    total = gathered.BUCKET_VALUES
    # The last variable has a bucket for itself, and the first one has the next.
    slices_of = {0: (total // 2, total - total // 2), 1: (1, 2)}
    saved = []
    for rank in range(2):
        own = {name: draw.standard_normal(size) for name, size in sizes.items()}
        for bucket, parts in slices_of.items():
            name = sliced.slice_name(bucket)
            own[name] = draw.standard_normal(parts[rank])
        saved.append({name: one.astype(np.float32) for name, one in own.items()})
    new = {**sizes, "slice_residual/0": [7], "slice_residual/1": [1]}
    merged = _merge(saved, new)
    for name, bucket in (("residual/a", 1), ("residual/b", 0)):
        lacked = np.concatenate([own[f"slice_residual/{bucket}"] for own in saved])
        expected = (saved[0][name] + saved[1][name]) / 2 + lacked
        np.testing.assert_allclose(merged[name], expected, rtol=1e-6, atol=1e-6)
    assert merged["slice_residual/0"].tolist() == [0] * 7
    assert merged["slice_residual/1"].tolist() == [0]
    assert merged.keys() == new.keys()


def test_vectors_that_are_sent_whole_are_in_no_slice():
    """Short vectors are among the long ones; one rank resumes a run of two."""
    shapes = {"a": [10], "b": [300], "c": [40], "d": [20, 10], "e": [8]}
    compression = CompressionSettings(
        compress="layerwise", error_feedback=True, exchange="sliced", dense_below=100
    )
    draw = np.random.default_rng(0)
    saved = []
    for rank in range(2):
        communicator = Communicator(ProcessInfo(rank=rank, num_ranks=2))
        exchange = CompressedExchange(communicator, shapes, compression, 0)
        saved.append(
            {
                name: draw.standard_normal(one.shape).astype(np.float32)
                for name, one in exchange.rank_variables.items()
            }
        )
    alone = CompressedExchange(ALONE, shapes, compression, 0)
    new = {name: one.shape.as_list() for name, one in alone.rank_variables.items()}
    merged = _merge(saved, new, compression.dense_below)
    assert merged.keys() == new.keys()
    lacked = np.concatenate([own["slice_residual/0"] for own in saved])
    of_slice = dict(zip(("b", "d"), _split_of_bucket(lacked), strict=True))
    for name in shapes:
        mean = (saved[0][f"residual/{name}"] + saved[1][f"residual/{name}"]) / 2
        expected = mean + of_slice.get(name, 0)
        np.testing.assert_allclose(merged[f"residual/{name}"], expected, rtol=1e-6)
    assert not merged["slice_residual/0"].any()


def _split_of_bucket(lacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the parts of vectors of 300 and 200 values; the last one comes first."""
    of_d, of_b = np.split(lacked, [200])
    return of_b, of_d


def test_without_slices_each_rank_gets_the_mean():
    saved = [{"residual/a": np.float32([1, 2])}, {"residual/a": np.float32([3, 6])}]
    merged = _merge(saved, {"residual/a": [2]})
    assert merged["residual/a"].tolist() == [2, 4]
