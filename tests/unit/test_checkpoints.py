"""Checkpoints are saved, listed and loaded; what a killed save leaves is removed."""

import os
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from resnet.base.errors import UserError
from resnet.checkpoint import restore, step_dirs, tensors
from resnet.checkpoint.step_dirs import saved_steps
from resnet.checkpoint.tensors import RANK_BATCH_NORM, Checkpoint
from resnet.checkpoint.weight_formats import files
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.optim.train_state import TrainState
from tests.unit.small_checkpoint import SMALL, save


@pytest.fixture(scope="module")
def state(make_config) -> Callable[..., TrainState]:
    return lambda **changes: TrainState(make_config(**changes))


@pytest.fixture(scope="module")
def trained(state) -> TrainState:
    """A state none of whose variables has the value that it starts with."""
    trained = state()
    generator = np.random.default_rng(0)
    for variable in trained.tensors().values():
        variable.assign(generator.normal(size=variable.shape).astype(np.float32))
    trained.step = 123_456_789_012
    return trained


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    """A model folder with a checkpoint of that state."""
    model_dir = tmp_path_factory.mktemp("model")
    save(model_dir, trained.step, trained.tensors())
    return model_dir


def test_what_is_saved_is_what_is_restored(state, trained, saved):
    other = state(seed=1)
    restore.restore(other, tensors.load(saved, trained.step))
    assert other.step == trained.step
    expected = trained.tensors()
    for name, variable in other.tensors().items():
        np.testing.assert_array_equal(variable.numpy(), expected[name].numpy())


def test_any_tensorflow_tool_can_read_it(trained, saved):
    folder = saved / "checkpoints" / f"step-{trained.step:08d}"
    reader = tf.train.load_checkpoint(str(folder / "state"))
    shapes = reader.get_variable_to_shape_map()
    # 7 convolutions, as many normalizations of two, and the classifier's two.
    assert len([name for name in shapes if name.startswith("velocity/")]) == 23
    assert len([name for name in shapes if name.startswith("model/")]) == 23 + 14
    assert shapes["model/classifier/kernel"] == [64, 3]
    assert reader.get_tensor("step") == trained.step
    np.testing.assert_array_equal(
        reader.get_tensor("velocity/stem/kernel"),
        trained.tensors()["velocity/stem/kernel"].numpy(),
    )


@pytest.mark.parametrize("changes", [{"model": "resnet20"}, {"class_names": "abcde"}])
def test_a_checkpoint_of_another_network_is_refused(state, trained, saved, changes):
    with pytest.raises(UserError, match="the checkpoint is not one of this resnet"):
        restore.restore(state(**changes), tensors.load(saved, trained.step))


def test_steps_are_listed_from_the_oldest(tmp_path):
    assert saved_steps(tmp_path) == []
    assert tensors.load_newest(tmp_path) is None
    for step in (20, 100_000_000, 3):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / ".step-00000006.unfinished").mkdir()
    assert saved_steps(tmp_path) == [3, 20, 100_000_000]


def test_an_interrupted_save_can_be_repeated(tmp_path):
    left = tmp_path / "checkpoints" / ".step-00000006.unfinished"
    left.mkdir(parents=True)
    (left / "state.data-00000-of-00001").write_bytes(b"half")
    save(tmp_path, 6)
    assert tensors.load(tmp_path, 6).tensors["weights"][7] == 7
    assert not left.exists()


def test_a_save_that_fails_leaves_the_checkpoints_as_they_were(tmp_path):
    save(tmp_path, 3, keep=1)
    with pytest.raises((ValueError, tf.errors.OpError)):
        save(tmp_path, 6, {"step-like": object()}, keep=1)
    assert saved_steps(tmp_path) == [3]
    assert tensors.load(tmp_path, 3).tensors["weights"][7] == 7


def test_a_missing_step_is_refused_with_those_that_are_there(tmp_path):
    with pytest.raises(UserError, match="there are: none"):
        tensors.load(tmp_path, 3)
    for step in (1, 2):
        save(tmp_path, step)
    with pytest.raises(UserError, match=r"of step 3 in .*there are: 1, 2"):
        tensors.load(tmp_path, 3)


def test_a_checkpoint_is_loaded_by_its_own_folder_and_the_newest_by_the_runs(
    tmp_path, monkeypatch
):
    with pytest.raises(UserError, match="must contain a checkpoint; found none"):
        tensors.load_from(tmp_path)
    folder = save(tmp_path, 1)
    save(tmp_path, 2)
    assert tensors.load_from(folder).step == 1
    assert tensors.load_from(tmp_path).step == 2
    with pytest.raises(UserError, match="-00000003 must contain a checkpoint; found"):
        tensors.load_from(step_dirs.of_step(tmp_path, 3))
    monkeypatch.chdir(folder.parent)
    assert tensors.load_from(pathlib.Path("step-00000001")).step == 1


def test_a_copied_checkpoint_is_loaded_whatever_its_name(tmp_path):
    folder = save(tmp_path, 1, {"weights": np.ones(2)})
    names = ("kept/step-00000001", "elsewhere/of_another_name")
    for name in names:
        shutil.copytree(folder, tmp_path / name)
    save(tmp_path, 1, {"weights": np.zeros(2)})
    for name in names:
        files.kind_of(tmp_path / name)
        loaded = tensors.load_from(tmp_path / name)
        assert loaded.step == 1
        assert loaded.tensors["weights"].tolist() == [1, 1]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_save_killed_while_it_replaces_a_checkpoint_loses_none(tmp_path, is_replaced):
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    old = folder / ".step-00000001.replaced"
    (folder / "step-00000001").rename(old)
    if is_replaced:
        save(tmp_path, 1)
        old.mkdir()  # Not removed any more.
    for name in (".step-00000001.unfinished", ".step-00000001.removed"):
        (folder / name).mkdir()
    step_dirs.remove_leftovers(tmp_path)
    assert [entry.name for entry in folder.iterdir()] == ["step-00000001"]
    assert tensors.load_newest(tmp_path).step == 1


@pytest.fixture
def own_state(tmp_path) -> pathlib.Path:
    """The folder of a checkpoint of one rank with state of its own."""
    own = {"residual/stem": np.float32([3, 4])}
    return tensors.save(tmp_path, Checkpoint(8, SMALL, {}, own), 9)


def test_a_ranks_own_state_lies_beside_the_rest(own_state):
    assert tensors.load_from(own_state).tensors.keys() == SMALL.keys()
    own = tensors.load_rank(own_state, 0, 1)
    assert {name: value.tolist() for name, value in own.items()} == {
        "residual/stem": [3, 4]
    }
    assert tensors.load_rank(own_state, 0, 2) == {}


@pytest.mark.parametrize("size", [None, 0, 3])
def test_the_rest_is_not_read_beside_a_rank_file_that_is_gone_or_cut(own_state, size):
    file = own_state / "rank-00000-of-00001.data-00000-of-00001"
    if size is None:
        file.unlink()
    else:
        file.write_bytes(b"x" * size)
    with pytest.raises(UserError, match=f"can't be read: {file.name}"):
        tensors.load_from(own_state)


def checkpoint(step: int, kernel: float, num_ranks: int = 2) -> Checkpoint:
    values = {
        "model/stem/kernel": np.full((2, 2), kernel, np.float32),
        "model/stem/moving_variance": np.float32([10 * kernel]),
        "ema/stem/kernel": np.full((2, 2), -kernel, np.float32),
        "velocity/stem/kernel": np.full((2, 2), 100 * kernel, np.float32),
        RANK_BATCH_NORM: np.full((num_ranks, 1), 5, np.float32),
    }
    return Checkpoint(step, values, {"num_ranks": num_ranks})


def test_weights_and_statistics_are_the_mean_the_rest_is_of_the_last():
    saved = [checkpoint(10, 1.0), checkpoint(20, 2.0), checkpoint(30, 6.0, 4)]
    mean = tensors.mean_of_weights(iter(saved))
    assert (mean.step, mean.metadata) == (30, {"num_ranks": 4})
    assert {name: value.tolist() for name, value in mean.tensors.items()} == {
        "model/stem/kernel": [[3.0] * 2] * 2,
        "model/stem/moving_variance": [30.0],
        "ema/stem/kernel": [[-3.0] * 2] * 2,
        "velocity/stem/kernel": [[600.0] * 2] * 2,
    }
    assert all(value.dtype == np.float32 for value in mean.tensors.values())


def test_small_differences_are_not_lost_in_the_mean():
    # The sum of so many in float32 would be off by more than a unit in the last place.
    values = np.random.default_rng(0).normal(1000, 1, 100).astype(np.float32)
    mean = tensors.mean_of_weights(
        checkpoint(step, value) for step, value in enumerate(values)
    )
    expected = np.float32(values.astype(np.float64).mean())
    np.testing.assert_array_equal(mean.tensors["model/stem/kernel"], expected)


def test_a_folder_that_a_host_remembers_as_missing_is_found(tmp_path, monkeypatch):
    """As on NFS, until the folder above it is listed."""
    model_dir = tmp_path / "model"
    listed: list[pathlib.Path] = []
    exists, listdir = pathlib.Path.exists, os.listdir

    def find(path: pathlib.Path) -> bool:
        return path.parent in listed and exists(path)

    def list_folder(folder: pathlib.Path) -> list[str]:
        if folder == model_dir and tmp_path not in listed:
            raise FileNotFoundError(folder)
        listed.append(folder)
        return listdir(folder)

    monkeypatch.setattr(pathlib.Path, "exists", find)
    monkeypatch.setattr(os, "listdir", list_folder)
    monkeypatch.setattr(restore, "_POLL_SECONDS", 0.01)
    restore.check_is_shared(model_dir, Communicator(ProcessInfo()), 10.0)
    assert listed == [tmp_path, model_dir]
    monkeypatch.undo()
    assert list(model_dir.iterdir()) == []
