"""Which files a run can begin with, and what is refused before anything is assigned."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from absl import logging
from safetensors.numpy import save_file

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import initial
from resnet.config.config import Config
from tests.unit import torchvision_weights as reference
from tests.unit.small_checkpoint import save

SHAPES = {one.path: tuple(one.shape) for one in reference.build_small(18).variables}


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(
        model="resnet18", resnet_variant="torchvision", class_names=tuple("abcde")
    )


@pytest.fixture
def write(tmp_path):
    """A function that writes torchvision's state dict, with changes; None removes."""

    def write(**changes: np.ndarray | None) -> pathlib.Path:
        renamed = {name.replace("__", "."): one for name, one in changes.items()}
        state = {**reference.state_dict(18), **renamed}
        path = tmp_path / "weights.npz"
        np.savez(path, **{name: one for name, one in state.items() if one is not None})
        return path

    return write


def test_a_state_dict_of_torchvision_fits_all_variables(config, write):
    values = initial.load(write(), config, SHAPES)
    assert {path: value.shape for path, value in values.items()} == SHAPES
    assert {value.dtype for value in values.values()} == {np.dtype(np.float32)}
    state = reference.state_dict(18)
    np.testing.assert_array_equal(
        values["stage2_block1_shortcut/kernel"][0, 0],
        state["layer2.0.downsample.0.weight"][:, :, 0, 0].T,
    )
    np.testing.assert_array_equal(
        values["stage4_block2_2/moving_variance"], state["layer4.1.bn2.running_var"]
    )
    np.testing.assert_array_equal(values["classifier/kernel"], state["fc.weight"].T)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"conv1__weight": np.ones([64, 3, 3, 3])},
         "'conv1.weight' must have the shape (64, 3, 7, 7), it has (64, 3, 3, 3)"),
        (
            {f"bn1__{name}": None
             for name in ("bias", "weight", "running_mean", "running_var")},
            "it lacks 'bn1.weight', 'bn1.bias', 'bn1.running_mean' and 1 more",
        ),
        (
            {"layer5__0": np.ones(1), "bn1__bias": np.ones(3)},
            "it has too much: 'layer5.0'; 'bn1.bias' must have the shape (64,), it has"
            " (3,)",
        ),
        # Half a classifier is not another number of classes.
        ({"fc__bias": np.ones(4)}, "'fc.bias' must have the shape (5,), it has (4,)"),
        ({"fc__bias": None}, "it lacks 'fc.bias'"),
    ],
)  # fmt: skip
def test_other_weights_are_refused_with_the_first_differences(
    config, write, changes, found
):
    path = write(**changes)
    with pytest.raises(UserError) as caught:
        initial.load(path, config, SHAPES)
    assert str(caught.value) == (
        f"--initial_weights must be those of this resnet18; {path}: {found}. Give"
        " their --model, or other weights."
    )


@pytest.fixture
def told(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(logging, "info", lambda text, *of: lines.append(text % of))
    return lines


@pytest.mark.parametrize(
    "changes",
    [
        {"fc__weight": np.ones([1000, 24]), "fc__bias": np.ones(1000)},
        {"fc__weight": None, "fc__bias": None},
    ],
)
def test_another_number_of_classes_gives_a_new_classifier(config, write, told, changes):
    path = write(**changes)
    values = initial.load(path, config, SHAPES)
    expected = {name for name in SHAPES if not name.startswith("classifier/")}
    assert values.keys() == expected
    assert told == [
        f"another number of classes: the classifier of {path} is not used, but a new"
        " one for the 5 classes of this run."
    ]


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("resnet_variant", "tpu", "--resnet_variant=torchvision"),
        ("batch_norm_epsilon", 1e-3, "a recipe with batch_norm_epsilon 1e-05"),
        ("activation", "mish", "--activation=relu"),
    ],
)
def test_weights_of_another_network_are_refused_with_the_setting(
    config, write, name, value, needed
):
    other = dataclasses.replace(config, **{name: value})
    with pytest.raises(UserError, match=f"need {needed}; got {name} {value}"):
        initial.load(write(), other, SHAPES)


def test_a_network_of_another_family_is_refused_with_what_its_format_lacks(
    make_config, write
):
    config = make_config(model="resnet18", resnet_variant="torchvision")
    shapes = {"stem_1/kernel": (3, 3, 3, 32), "stem_1/beta": (32,)}
    with pytest.raises(UserError, match="its format has no 'stem_1/kernel', 'stem_1/b"):
        initial.load(write(), config, shapes)


def test_a_file_of_unknown_names_is_refused_with_them(config, tmp_path):
    np.savez(tmp_path / "a.npz", **dict.fromkeys("wxyz", np.ones(1)))
    with pytest.raises(UserError, match=r"of our networks, .*; it holds 'w', 'x',"):
        initial.load(tmp_path / "a.npz", config, SHAPES)


VALUES = {
    "stem/kernel": np.ones([3, 3], np.float32),
    "classifier/kernel": np.ones([3, 5], np.float32),
}
OWN_SHAPES = {name: one.shape for name, one in VALUES.items()}


def save_own(folder: pathlib.Path, config: Config, **more: Any) -> pathlib.Path:
    """Saves a checkpoint of `VALUES` with the settings of its run."""
    named = {f"model/{name}": one for name, one in VALUES.items()}
    tensors = {**named, "velocity/stem/kernel": np.zeros([3, 3]), **more}
    return save(folder, 7, tensors, config=dataclasses.asdict(config))


def test_of_our_own_checkpoints_only_the_network_is_read(config, tmp_path, told):
    values = initial.load(save_own(tmp_path, config), config, OWN_SHAPES)
    assert values.keys() == VALUES.keys()
    assert all(value.all() for value in values.values())
    assert told == []


def test_other_classes_of_the_same_number_give_a_new_classifier(config, tmp_path, told):
    old = dataclasses.replace(config, class_names=tuple("vwxyz"))
    path = save_own(tmp_path, old)
    assert initial.load(path, config, OWN_SHAPES).keys() == {"stem/kernel"}
    (line,) = told
    assert line.startswith(f"other classes: the classifier of {path} is not used")


def test_variables_by_their_paths_are_read(config, tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(VALUES, path)
    values = initial.load(path, config, OWN_SHAPES)
    assert {name: value.tolist() for name, value in values.items()} == {
        name: value.tolist() for name, value in VALUES.items()
    }
