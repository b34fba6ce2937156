"""Where the segments of an asynchronous run end, and what its speed leaves out."""

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.async_training.training import AsyncTraining, end_of_segment
from resnet.config import intervals, phases, rounds
from resnet.config.resolve import resolve
from resnet.evaluation.evaluations import is_due_after
from resnet.metrics import progress
from resnet.recipes import imagenet

COLLAPSE = imagenet.COLLAPSE_72EP_4K


def found_step_by_step(config, step: int) -> int:
    every = intervals.parse(config.checkpoint_every, "--checkpoint_every")
    while True:
        step += 1
        if (
            step >= config.last_step
            or phases.ended_by(config.phases, step) is not None
            or rounds.ends_interval(config, every, step)
            or is_due_after(config, step)
        ):
            return step


@settings(deadline=None, max_examples=60)
@given(
    checkpoint_every=st.sampled_from(["1epoch", "7steps", "3epochs", "10minutes"]),
    eval_every=st.sampled_from(["", "5steps", "2epochs"]),
    num_examples=st.integers(40, 90),
    stop_after_steps=st.sampled_from([0, 50]),
    done=st.floats(0, 1, exclude_max=True),
)
def test_a_segment_ends_at_the_first_step_that_is_due(
    checkpoint_every, eval_every, num_examples, stop_after_steps, done
):
    given_settings = {
        "global_batch_size": 32,
        "checkpoint_every": checkpoint_every,
        "eval_every": eval_every,
        "stop_after_steps": stop_after_steps,
    }
    config = resolve(COLLAPSE, given_settings, num_examples, ("a", "b"))
    step = int(done * config.last_step)
    assert end_of_segment(config, step) == found_step_by_step(config, step)


def test_saves_are_not_in_the_images_per_second(make_config, monkeypatch):
    now = [1.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shown = progress.Progress(make_config(global_batch_size=50), 0, rank=1)
    shown.step_done()

    class Manager:
        def save(self, results) -> None:
            now[0] += 1000

    training = AsyncTraining.__new__(AsyncTraining)
    training._log = SimpleNamespace(sync=lambda: None, progress=shown)  # type: ignore[assignment]
    training._manager = Manager()  # type: ignore[assignment]
    training._save()
    now[0] += 2
    shown.step_done()
    assert shown.show(2, 1.0, 0.1) == 25.0
