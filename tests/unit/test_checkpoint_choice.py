from pathlib import Path

import pytest

from eval import checkpoint_choice
from resnet.base.errors import UserError
from resnet.checkpoint import integrity, step_dirs


@pytest.fixture
def model_dir(tmp_path) -> Path:
    """A run of two phases, which kept four checkpoints."""
    facts = {
        10: {"eval": {"top1": 0.5}},
        20: {"eval": {"top1": 0.4}, "ends_phase": "warm"},
        30: {"eval": {"top1": 0.3}, "eval_ema": {"top1": 0.6}},
        40: {"ends_phase": "cold"},
    }
    for step, one in facts.items():
        folder = step_dirs.of_step(tmp_path, step)
        folder.mkdir(parents=True)
        integrity.write_contents(folder, one)
    return tmp_path


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        ("latest", [40]),
        ("best", [30]),
        ("all", [10, 20, 30, 40]),
        ("phases", [20, 40]),
        ("30,10,30", [10, 30]),
        ("20", [20]),
    ],
)
def test_the_names_and_numbers_are_steps(model_dir, value, steps):
    requested = checkpoint_choice.parse(value)
    assert checkpoint_choice.choose(requested, model_dir) == steps


@pytest.mark.parametrize("requested", ["latest", "best", "all", "phases", [10]])
def test_a_run_without_checkpoints_is_refused(tmp_path, requested):
    with pytest.raises(UserError, match="no checkpoint has been saved in"):
        checkpoint_choice.choose(requested, tmp_path)
