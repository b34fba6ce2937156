import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base.errors import UserError
from resnet.config import rules
from resnet.optim.groups import balanced
from resnet.training.parameter_servers import roles
from resnet.training.parameter_servers.roles import COORDINATOR, SERVER, WORKER, Role


def test_rank_0_coordinates_and_the_next_ones_serve():
    assert [roles.of_rank(rank, 2) for rank in range(6)] == [
        Role(COORDINATOR, 0),
        Role(SERVER, 0),
        Role(SERVER, 1),
        Role(WORKER, 0),
        Role(WORKER, 1),
        Role(WORKER, 2),
    ]


@given(num_servers=st.integers(1, 20), num_workers=st.integers(1, 20))
def test_each_job_has_its_ranks_numbered_from_zero(num_servers, num_workers):
    num_ranks = 1 + num_servers + num_workers
    assert rules.num_workers(num_ranks, num_servers) == num_workers
    found = [roles.of_rank(rank, num_servers) for rank in range(num_ranks)]
    for job, size in ((COORDINATOR, 1), (SERVER, num_servers), (WORKER, num_workers)):
        assert [role.index for role in found if role.job == job] == list(range(size))


@pytest.mark.parametrize(
    ("num_ranks", "num_servers", "least"), [(1, 1, 3), (2, 1, 3), (3, 2, 4), (4, 9, 11)]
)
def test_a_job_without_a_worker_is_refused(num_ranks, num_servers, least):
    with pytest.raises(UserError) as caught:
        rules.num_workers(num_ranks, num_servers)
    assert str(caught.value) == (
        "--sync_mode=async needs one rank that coordinates, --num_ps ranks that serve"
        f" and at least one that works; got {num_ranks} rank(s) with"
        f" --num_ps={num_servers}. Start at least {least} ranks, as by mpirun -np"
        f" {least}."
    )


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 8))
def test_the_variables_are_distributed_evenly_over_the_servers(sizes, num_parts):
    parts = balanced(sizes, num_parts)
    assert len(parts) == num_parts
    assert sorted(index for part in parts for index in part) == list(range(len(sizes)))
    assert all(part == sorted(part) for part in parts)
    largest = max(sum(sizes[index] for index in part) for part in parts)
    # A part only gets another one while it has the smallest sum, at most the mean.
    assert largest <= sum(sizes) / num_parts + max(sizes, default=0)


def test_the_largest_variables_are_distributed_first():
    assert balanced([1, 2, 3, 4, 10], 2) == [[4], [0, 1, 2, 3]]
    assert balanced([5, 5, 5], 1) == [[0, 1, 2]]
    assert balanced([7], 3) == [[0], [], []]
