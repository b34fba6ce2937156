import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from resnet.base.errors import UserError
from resnet.checkpoint import retention, step_dirs, tensors
from resnet.checkpoint.restore import restore
from resnet.checkpoint.retention import best_step, phase_ends
from resnet.checkpoint.step_dirs import saved_steps
from resnet.checkpoint.weight_formats import files
from resnet.optim.train_state import TrainState
from tests.unit.small_checkpoint import save


@pytest.fixture(scope="module")
def state(make_config) -> Callable[..., TrainState]:
    return lambda **changes: TrainState(make_config(**changes))


@pytest.fixture(scope="module")
def trained(state) -> TrainState:
    """A state none of whose variables has the value that it starts with."""
    made = state()
    generator = np.random.default_rng(0)
    for variable in made.tensors().values():
        variable.assign(generator.normal(size=variable.shape).astype(np.float32))
    made.step = 123_456_789_012
    return made


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    """A model folder with a checkpoint of that state."""
    model_dir = tmp_path_factory.mktemp("model")
    save(model_dir, trained.step, trained.tensors())
    return model_dir


def test_what_is_saved_is_what_is_restored(state, trained, saved):
    other = state(seed=1)
    restore(other, tensors.load(saved, trained.step))
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


@pytest.mark.parametrize("changes", [{"model": "resnet20"}, {"model": "resnet9"}])
def test_a_checkpoint_that_lacks_tensors_is_refused(state, trained, saved, changes):
    with pytest.raises(UserError, match="the checkpoint is not one of this resnet"):
        restore(state(**changes), tensors.load(saved, trained.step))


def test_a_checkpoint_of_a_deeper_network_is_refused(state, tmp_path):
    # resnet20 has every tensor of resnet8, and in the same shapes.
    deeper = state(model="resnet20")
    save(tmp_path, 1, deeper.tensors())
    with pytest.raises(UserError):
        restore(state(), tensors.load(tmp_path, 1))


def test_a_checkpoint_of_other_classes_is_refused(state, trained, saved):
    other = state(class_names="abcde")
    with pytest.raises(UserError):
        restore(other, tensors.load(saved, trained.step))


def test_steps_are_listed_from_the_oldest(tmp_path):
    assert saved_steps(tmp_path) == []
    for step in (20, 100_000_000, 3):
        save(tmp_path, step, keep=9)
    assert saved_steps(tmp_path) == [3, 20, 100_000_000]
    names = sorted(entry.name for entry in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000020", "step-100000000"]


def test_an_unfinished_folder_is_no_checkpoint(tmp_path):
    save(tmp_path, 3, keep=9)
    (tmp_path / "checkpoints" / ".step-00000006.unfinished").mkdir()
    assert saved_steps(tmp_path) == [3]


def test_a_save_that_was_interrupted_can_be_done_again(tmp_path):
    left = tmp_path / "checkpoints" / ".step-00000006.unfinished"
    left.mkdir(parents=True)
    (left / "state.data-00000-of-00001").write_bytes(b"half")
    save(tmp_path, 6, keep=9)
    assert tensors.load(tmp_path, 6).tensors["weights"][7] == 7
    assert not left.exists()


def test_a_save_that_fails_leaves_the_checkpoints_as_they_were(tmp_path):
    save(tmp_path, 3, keep=1)
    with pytest.raises((ValueError, tf.errors.OpError)):
        save(tmp_path, 6, {"step-like": object()}, keep=1)
    assert saved_steps(tmp_path) == [3]
    assert tensors.load(tmp_path, 3).tensors["weights"][7] == 7


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, keep=2)
    assert saved_steps(tmp_path) == [2, 3]
    save(tmp_path, 4, keep=1)
    assert saved_steps(tmp_path) == [4]


def test_a_step_that_was_saved_before_is_replaced(tmp_path):
    save(tmp_path, 3, keep=2)
    save(tmp_path, 3, {"weights": np.zeros(2)}, keep=2)
    assert tensors.load(tmp_path, 3).tensors["weights"].tolist() == [0, 0]


def test_the_folder_that_is_returned_holds_the_checkpoint(tmp_path):
    folder = save(tmp_path, 3, keep=2)
    assert sorted(file.name for file in folder.iterdir()) == [
        "checkpoint.json",
        "state.data-00000-of-00001",
        "state.index",
    ]


def test_without_any_there_is_none(tmp_path):
    assert tensors.load_newest(tmp_path) is None


def test_a_missing_step_is_a_sentence_with_those_that_are_there(tmp_path):
    with pytest.raises(UserError, match="there are: none"):
        tensors.load(tmp_path, 3)
    for step in (1, 2):
        save(tmp_path, step, keep=2)
    with pytest.raises(UserError, match=r"of step 3 in .*there are: 1, 2"):
        tensors.load(tmp_path, 3)


def test_the_best_one_stays_beside_the_newest(tmp_path):
    for step, top1 in [(1, 0.5), (2, 0.75), (3, 0.75), (4, 0.25), (5, None), (6, 0.1)]:
        metadata = {} if top1 is None else {"eval": {"top1": top1}}
        save(tmp_path, step, keep=2, **metadata)
    assert best_step(tmp_path) == 3
    assert saved_steps(tmp_path) == [3, 5, 6]


def test_the_average_of_the_weights_can_be_the_best(tmp_path):
    save(tmp_path, 1, eval={"top1": 0.5}, eval_ema={"top1": 0.25})
    save(tmp_path, 2, eval={"top1": 0.125}, eval_ema={"top1": 0.75})
    save(tmp_path, 3, eval={"top1": 0.625}, eval_ema={"top1": 0.625})
    assert best_step(tmp_path) == 2


@pytest.mark.parametrize(
    ("metadata", "top1"),
    [
        ({}, None),
        ({"eval": {"top1": 0.0}}, 0.0),
        ({"eval": {"top1": 0.25}}, 0.25),
        ({"eval": {"top1": 0.25}, "eval_ema": {"top1": 0.5}}, 0.5),
        ({"eval": {"top1": 0.75}, "eval_ema": {"top1": 0.5}}, 0.75),
    ],
)
def test_the_best_of_both_networks_counts(metadata, top1):
    assert retention.best_top1(metadata) == top1


@pytest.mark.parametrize(
    ("metadata", "wanted", "ends"),
    [
        ({"eval": {"top1": 0.5}}, 0.5, True),
        ({"eval": {"top1": 0.25}, "eval_ema": {"top1": 0.75}}, 0.5, True),
        ({"eval": {"top1": 0.375}}, 0.5, False),
        ({"eval": {"top1": 0.75}}, 0.0, False),
        ({}, 0.5, False),
    ],
)
def test_a_run_ends_with_what_is_good_enough(tmp_path, metadata, wanted, ends):
    save(tmp_path, 3, **metadata)
    assert retention.ends_run(tmp_path, 3, 7, wanted) is ends
    save(tmp_path, 4, config={"stop_at_top1": wanted}, **metadata)
    assert retention.ends_run(tmp_path, 4, 7) is ends
    assert retention.ends_run(tmp_path, 4, 4)


def test_the_ends_of_phases_stay_beside_the_newest_and_the_best(tmp_path):
    save(tmp_path, 1, keep=1, eval={"top1": 0.75})
    save(tmp_path, 2, keep=1, ends_phase="init")
    save(tmp_path, 3, keep=1, eval={"top1": 0.5})
    save(tmp_path, 4, keep=1, ends_phase="collapse")
    save(tmp_path, 5, keep=1)
    assert saved_steps(tmp_path) == [1, 2, 4, 5]
    assert phase_ends(tmp_path) == {2: "init", 4: "collapse"}


def test_without_phases_none_ends(tmp_path):
    assert phase_ends(tmp_path) == {}
    save(tmp_path, 1)
    assert phase_ends(tmp_path) == {}


def test_a_checkpoint_is_loaded_by_its_own_folder_and_the_newest_by_the_runs(
    tmp_path, monkeypatch
):
    folder = save(tmp_path, 1)
    save(tmp_path, 2)
    assert tensors.load_from(folder).step == 1
    assert tensors.load_from(tmp_path).step == 2
    monkeypatch.chdir(folder.parent)
    assert tensors.load_from(pathlib.Path("step-00000001")).step == 1


def test_a_folder_without_a_checkpoint_is_refused_with_its_path(tmp_path):
    with pytest.raises(UserError) as caught:
        tensors.load_from(tmp_path)
    assert str(caught.value) == f"{tmp_path} must contain a checkpoint; found none"
    save(tmp_path, 1)
    with pytest.raises(UserError, match="-00000002 must contain a checkpoint; found"):
        tensors.load_from(step_dirs.of_step(tmp_path, 2))


def test_a_checkpoint_that_was_copied_elsewhere_is_itself(tmp_path):
    folder = save(tmp_path, 1, {"weights": np.ones(2)})
    for name in ("kept/step-00000001", "elsewhere/of_another_name"):
        shutil.copytree(folder, tmp_path / name)
    save(tmp_path, 1, {"weights": np.zeros(2)})
    for name in ("kept/step-00000001", "elsewhere/of_another_name"):
        files.kind_of(tmp_path / name)
        loaded = tensors.load_from(tmp_path / name)
        assert loaded.step == 1
        assert loaded.tensors["weights"].tolist() == [1, 1]


def test_an_empty_folder_of_the_right_name_is_no_checkpoint(tmp_path):
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    with pytest.raises(UserError, match="must contain a checkpoint"):
        files.kind_of(folder)


def test_without_an_evaluation_none_is_best(tmp_path):
    save(tmp_path, 1)
    assert best_step(tmp_path) is None


def test_leftovers_of_a_killed_save_are_removed(tmp_path):
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    for name in (".step-00000002.unfinished", ".step-00000001.removed"):
        (folder / name).mkdir()
        (folder / name / "state.index").write_bytes(b"half")
    step_dirs.remove_leftovers(tmp_path)
    assert [entry.name for entry in folder.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_save_killed_while_it_replaces_a_checkpoint_loses_none(tmp_path, is_replaced):
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    old = folder / ".step-00000001.replaced"
    (folder / "step-00000001").rename(old)
    if is_replaced:
        save(tmp_path, 1)
        old.mkdir()  # Not removed any more.
    (folder / ".step-00000001.unfinished").mkdir()
    step_dirs.remove_leftovers(tmp_path)
    assert [entry.name for entry in folder.iterdir()] == ["step-00000001"]
    assert tensors.load_newest(tmp_path).step == 1
