"""How buckets are cut into slices."""

from hypothesis import given
from hypothesis import strategies as st

from resnet.config.compression import CompressionSettings
from resnet.exchange import sliced
from resnet.exchange.codecs import slices
from resnet.exchange.codecs.slices import Piece


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
