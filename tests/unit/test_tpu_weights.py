"""Weights of the TPU recipe's checkpoints, as TensorFlow 1 writes them."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import files, initial, tpu
from tests.unit import torchvision_weights
from tests.unit.described_model import without_values

BATCH_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3), "resnet50d": (3, 4, 6, 3)}


def layers_in_order(name: str) -> list[str]:
    """Returns our names of the layers in the order in which the TPU code makes them.

    That is the order of the calls of conv2d_fixed_padding in its resnet_model.py.
    """
    parts = "12" if name == "resnet18" else "123"
    order = ["stem_1", "stem_2", "stem_3"] if name.endswith("d") else ["stem"]
    for stage, num_blocks in enumerate(BLOCKS[name], start=1):
        for block in range(1, num_blocks + 1):
            before = f"stage{stage}_block{block}_"
            order += [f"{before}shortcut"] * (block == 1)
            order += [before + part for part in parts]
    return order


def names_in_checkpoint(name: str) -> dict[str, str]:
    """Returns TensorFlow's names of the variables by our paths."""
    names = {}
    for number, layer in enumerate(layers_in_order(name)):
        ending = f"_{number}" if number else ""
        names[f"{layer}/kernel"] = f"conv2d{ending}/kernel"
        for variable in BATCH_NORM:
            names[f"{layer}/{variable}"] = f"batch_normalization{ending}/{variable}"
    names["classifier/kernel"] = "dense/kernel"
    names["classifier/bias"] = "dense/bias"
    return names


@pytest.mark.parametrize("name", BLOCKS)
def test_variables_are_numbered_as_the_tpu_code_makes_them(name):
    shapes = {one.path: one.shape for one in without_values(name).variables}
    found = {path: place.name for path, place in tpu.places(shapes).items()}
    assert found == names_in_checkpoint(name)
    assert found.keys() == shapes.keys()


@pytest.fixture(scope="module")
def values() -> dict[str, np.ndarray]:
    model = torchvision_weights.build_small(18, variant="tpu")
    generator = np.random.default_rng(3)
    return {
        one.path: generator.normal(size=one.shape).astype(np.float32)
        for one in model.variables
    }


@pytest.fixture(scope="module")
def model_dir(values, tmp_path_factory) -> pathlib.Path:
    """The folder of a TPU run: slots of the momentum and of an EMA, and the step."""
    folder = tmp_path_factory.mktemp("tpu")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        names = names_in_checkpoint("resnet18")
        for path, name in names.items():
            v1.get_variable(name, initializer=values[path], use_resource=False)
        for path in ("stem/kernel", "stem/gamma", "classifier/bias"):
            for slot in ("Momentum", "ExponentialMovingAverage"):
                zeros = np.zeros_like(values[path])
                v1.get_variable(f"{names[path]}/{slot}", initializer=zeros)
        v1.get_variable("global_step", initializer=np.int64(112_590))
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver()
        saver.save(session, str(folder / "model.ckpt"), 112_590)
    return folder


@pytest.fixture(scope="module")
def config(make_config):
    return make_config(model="resnet18", class_names=tuple("abcde"))


@pytest.mark.parametrize("name", ["", "model.ckpt-112590", "model.ckpt-112590.index"])
def test_a_checkpoint_of_the_tpu_program_is_read(model_dir, values, config, name):
    path = model_dir / name if name else model_dir
    assert files.kind_of(path) == files.TENSORFLOW
    shapes = {path: value.shape for path, value in values.items()}
    found = initial.load(path, config, shapes)
    assert found.keys() == values.keys()
    for path, value in found.items():
        np.testing.assert_array_equal(value, values[path])


def test_only_the_state_of_optimizers_is_ignored():
    for other in (
        "squeeze_excitation/conv2d/kernel",
        "conv2d_53/kernel",
        "evonorm/gamma",
        "batch_normalization_53/gamma",
    ):
        assert not tpu.is_extra(other)
    for variable in ("conv2d/kernel", "batch_normalization_3/gamma", "dense/bias"):
        assert not tpu.is_extra(variable)
        for slot in ("Momentum", "ExponentialMovingAverage", "LARSOptimizer"):
            assert tpu.is_extra(f"{variable}/{slot}")


def test_a_folder_whose_checkpoint_was_removed_is_refused(tmp_path):
    text = 'model_checkpoint_path: "model.ckpt-5"\nall_model_checkpoint_paths: "x"\n'
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(
        UserError, match="must contain a checkpoint, of this program or"
    ):
        files.kind_of(tmp_path)
    (tmp_path / "model.ckpt-5.index").write_bytes(b"damaged")
    assert files.kind_of(tmp_path) == files.TENSORFLOW
    with pytest.raises(UserError, match="must be a TensorFlow checkpoint; "):
        files.open_file(tmp_path)
