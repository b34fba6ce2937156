import pytest

from tests.many_watchdogs import ManyWatchdogs

NUM_RANKS = 512


@pytest.fixture(scope="module")
def job():
    """Returns the connections of 512 ranks, before and after one of them has died."""
    with ManyWatchdogs(NUM_RANKS) as many:
        num_connections = len(many.channels)
        many.heartbeat("computing step 12345")
        sent = many.sent_bytes
        many.lose(300)
        answers = many.received(30)
        yield num_connections, sent, answers, many.end()


def test_the_monitor_has_a_connection_to_each_rank(job):
    assert job[0] == NUM_RANKS - 1


def test_a_rank_sends_one_short_message_at_a_tick(job):
    assert job[1] / (NUM_RANKS - 1) < 200


def test_the_death_of_one_rank_ends_all(job):
    assert job[2] == [{"kill": True}] * (NUM_RANKS - 1)


def test_the_death_is_one_line_however_many_ranks_there_are(job):
    assert job[3] == "error: rank 300 on node150 has died. The job ends.\n"
