from resnet.metrics.rank_speed import RankSpeed


class TwoRanks:
    """Of whose other rank the speed is 3.00004."""

    num_ranks = 2

    def allgather(self, value):
        return [value, 3.00004]


def test_the_time_of_waiting_is_left_out():
    speed = RankSpeed(local_batch_size=8)
    speed.step_done(None, 9.0, 9.0)  # The first step isn't timed.
    speed.step_done(3.0, 0.5, 0.5)
    speed.step_done(4.0, 1.0, 1.0)
    assert speed.report(TwoRanks()) == [2 * 8 / 4.0, 3.0]
    assert speed.report(TwoRanks()) == [0.0, 3.0]  # No step since then.


def test_one_rank_reports_nothing():
    alone = TwoRanks()
    alone.num_ranks = 1
    speed = RankSpeed(8)
    speed.step_done(1.0, 0.0, 0.0)
    assert speed.report(alone) == []
