"""Checkpoints of earlier versions can be read; the format is raised only if need be."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.checkpoint import rank_names, retention
from resnet.checkpoint import tensors as checkpoints
from resnet.checkpoint.rank_files import RankFiles
from resnet.checkpoint.step_dirs import of_step
from resnet.checkpoint.tensors import RANK_BATCH_NORM, Checkpoint
from tests.unit.small_checkpoint import SMALL

FORMAT_1 = Path(__file__).parent / "checkpoint_of_format_1"


def test_a_checkpoint_of_the_first_version_is_read():
    saved = checkpoints.load_newest(FORMAT_1)
    assert saved.step == 7
    assert saved.metadata == {
        "num_ranks": 2,
        "losses": [0.5],
        "eval": {"top1": 0.25},
        "ends_phase": "init",
    }
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert saved.tensors.keys() == {
        "model/stem/kernel",
        "velocity/stem/kernel",
        RANK_BATCH_NORM,
    }
    np.testing.assert_array_equal(saved.tensors["model/stem/kernel"], kernel)
    np.testing.assert_array_equal(saved.tensors["velocity/stem/kernel"], -kernel)
    assert saved.tensors[RANK_BATCH_NORM].tolist() == [[1, 2], [3, 4]]
    assert retention.best_step(FORMAT_1) == 7
    assert retention.phase_ends(FORMAT_1) == {7: "init"}
    assert RankFiles(of_step(FORMAT_1, 7)).num_ranks == 0


def test_what_rank_0_alone_saves_is_as_in_the_first_version(tmp_path):
    old = of_step(FORMAT_1, 7)
    saved = checkpoints.load_newest(FORMAT_1)
    new = checkpoints.save(tmp_path, saved, 9)
    names = sorted(file.name for file in old.iterdir())
    assert sorted(file.name for file in new.iterdir()) == names
    contents = [json.loads((f / "checkpoint.json").read_text()) for f in (old, new)]
    assert contents[0].keys() == contents[1].keys()
    assert contents[0]["format"] == contents[1]["format"]
    # Since then the step is there too, so that a renamed folder is noticed.
    assert {**contents[0]["facts"], "step": 7} == contents[1]["facts"]
    for name, old_file in contents[0]["files"].items():
        assert contents[1]["files"][name]["bytes"] == old_file["bytes"]


@pytest.fixture
def own_state(tmp_path) -> Path:
    """The folder of a checkpoint of one rank with state of its own."""
    own = {"residual/stem": np.float32([3, 4])}
    return checkpoints.save(tmp_path, Checkpoint(8, SMALL, {}, own), 9)


def test_state_of_ranks_raises_the_format_and_lies_beside_the_rest(own_state):
    contents = json.loads((own_state / "checkpoint.json").read_text())
    assert contents["format"] == 2
    owners = {name: rank_names.owner(name) for name in contents["files"]}
    assert owners == {
        "state.index": None,
        "state.data-00000-of-00001": None,
        "rank-00000-of-00001.index": 0,
        "rank-00000-of-00001.data-00000-of-00001": 0,
    }
    assert checkpoints.load_from(own_state).tensors.keys() == SMALL.keys()
    files = RankFiles(own_state)
    assert files.num_ranks == 1
    assert {name: one.tolist() for name, one in files.read(0).items()} == {
        "residual/stem": [3, 4]
    }


@pytest.mark.parametrize("size", [None, 0, 3])
def test_the_rest_is_not_read_beside_a_rank_file_that_is_gone_or_cut(own_state, size):
    file = own_state / "rank-00000-of-00001.data-00000-of-00001"
    if size is None:
        file.unlink()
    else:
        file.write_bytes(b"x" * size)
    with pytest.raises(UserError, match=f"can't be read: {file.name}"):
        checkpoints.load_from(own_state)


def test_a_folder_with_state_of_ranks_can_be_copied(own_state, tmp_path):
    shutil.copytree(own_state, tmp_path / "copy")
    assert checkpoints.load_from(tmp_path / "copy").step == 8
