"""Exports of weights, with which another run begins."""

import dataclasses

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.checkpoint import tensors
from resnet.checkpoint.weight_formats import initial
from resnet.models import resnet
from tests.unit import exported_run


@pytest.fixture(scope="module")
def saved(make_config, tmp_path_factory):
    """The settings of a run of torchvision's network, and the values of its EMA."""
    folder = tmp_path_factory.mktemp("run")
    settings = {"model": "resnet18", "resnet_variant": "torchvision", "ema_decay": 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "STAGE_FILTERS", (64, 4, 4, 4))
        config = exported_run.save(folder, make_config(**settings), 20)
        values = {
            name.removeprefix("ema/"): value
            for name, value in tensors.load(folder, 20).tensors.items()
            if name.startswith("ema/")
        }
        yield config, values


def assert_begins_with(path, config, values) -> None:
    shapes = {name: value.shape for name, value in values.items()}
    read = initial.load(path, config, shapes)
    assert read.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(read[name], value)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_state_dict_for_torchvision_begins_another_run(saved, tmp_path, suffix):
    config, values = saved
    path = tmp_path / f"weights{suffix}"
    done = exported_run.export(config, "torchvision", path)
    assert done.stdout.startswith(f"{path}: resnet18 of step 20 (ema"), done.stderr
    assert_begins_with(path, config, values)


def test_an_unfolded_export_begins_another_run(saved, tmp_path):
    config, values = saved
    path = tmp_path / "weights.safetensors"
    done = exported_run.export(config, "safetensors", path, "--nofold_batch_norm")
    assert done.returncode == 0, done.stderr
    assert_begins_with(path, config, values)
    other = dataclasses.replace(config, resnet_variant="tpu", model="resnet34")
    needed = "need --model=resnet18 --resnet_variant=torchvision; got model resnet34, "
    with pytest.raises(UserError, match=f"{needed}resnet_variant tpu. Change these"):
        assert_begins_with(path, other, values)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_folded_export_is_not_trained_on(saved, tmp_path, precision):
    config, values = saved
    path = tmp_path / "weights.safetensors"
    flag = f"--precision={precision}"
    done = exported_run.export(config, "safetensors", path, flag)
    assert done.returncode == 0, done.stderr
    with pytest.raises(UserError, match="batch normalization is folded into the conv"):
        assert_begins_with(path, config, values)
