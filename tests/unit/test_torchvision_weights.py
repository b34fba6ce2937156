"""Weights of torchvision's ResNets: names, axes, and the logits that they give."""

import dataclasses
import pickle
import sys
import types

import numpy as np
import pytest
from safetensors import safe_open

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import files, torchvision
from resnet.export import weight_files
from tests.unit import torchvision_weights as reference
from tests.unit.described_model import without_values

# Those of torchvision 0.29.1 (PyTorch 2.14.1) in float64 for `reference.images`: its
# class ResNet, whose `_make_layer` got the numbers of channels of `reference.FILTERS`.
LOGITS = {
    18: [
        [6.07593, 9.601485, -2.226469, 6.019715, 2.395542],
        [6.13922, 7.448866, -1.43983, 3.609026, 0.954374],
    ],
    50: [
        [10.320759, -9.627963, -7.481273, 12.899914, 18.840402],
        [10.943532, -10.848848, -7.775909, 14.573327, 18.362483],
    ],
}


def assigned(depth: int):
    """Returns our network with the reference's weights, and their values by path."""
    model = reference.build_small(depth)
    state = reference.state_dict(depth)
    places = torchvision.places([one.path for one in model.variables])
    values = {path: place.to_ours(state[place.name]) for path, place in places.items()}
    for one in model.variables:
        one.assign(values[one.path])
    return model, values


@pytest.mark.parametrize("depth", [18, 50])
def test_the_logits_are_those_of_torchvision(depth):
    model, _ = assigned(depth)
    ours = model(reference.images(), training=False)
    np.testing.assert_allclose(ours, LOGITS[depth], rtol=0, atol=1e-4)


@pytest.mark.parametrize("depth", [18, 50])
def test_there_and_back_the_weights_keep_every_bit(depth):
    _, values = assigned(depth)
    state = torchvision.state_dict(values)
    expected = reference.state_dict(depth)
    assert state.keys() == expected.keys()
    for name, array in state.items():
        assert array.flags.c_contiguous
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_networks_that_torchvision_lacks_have_no_state_dict():
    model = without_values("resnet50d")
    paths = [one.path for one in model.variables]
    missing = set(paths) - set(torchvision.places(paths))
    assert missing == {path for path in paths if path.startswith("stem_")}
    with pytest.raises(ValueError, match="no 'stem_1/beta'"):
        torchvision.state_dict(dict.fromkeys(paths, np.zeros([1, 1])))


@pytest.fixture(scope="module")
def config(make_config):
    return make_config(model="resnet18", resnet_variant="torchvision")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_written_file_holds_the_state_dict(config, tmp_path, suffix):
    _, values = assigned(18)
    path = tmp_path / f"weights{suffix}"
    weight_files.write_state_dict(path, config, values)
    file, expected = files.open_file(path), reference.state_dict(18)
    assert file.shapes == reference.shapes(18)
    for name, array in expected.items():
        np.testing.assert_array_equal(file.read(name), array)
    if suffix == ".safetensors":
        with safe_open(path, "np") as opened:
            assert opened.metadata() == {"format": "pt"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"resnet_variant": "tpu"}, "only networks of --resnet_variant=torch"),
        ({"batch_norm_epsilon": 1e-3}, "a batch_norm_epsilon of 1e-05; got 0.0"),
        ({"se_ratio": 0.25}, "no resnet18 of --se_ratio=0.25"),
        ({"fixed_gamma": True}, "networks train gamma; got fixed_gamma"),
    ],
)
def test_what_torchvision_would_not_compute_alike_is_not_written(
    config, tmp_path, changes, sentence
):
    config = dataclasses.replace(config, **changes)
    with pytest.raises(UserError, match=sentence):
        weight_files.write_state_dict(tmp_path / "a.npz", config, {})
    assert not any(tmp_path.iterdir())


def test_pytorch_saves_the_state_dict_as_tensors(config, tmp_path, monkeypatch):
    torch = types.ModuleType("torch")
    torch.from_numpy = lambda array: ("tensor", array)
    torch.save = lambda tensors, path: path.write_bytes(pickle.dumps(tensors))
    monkeypatch.setitem(sys.modules, "torch", torch)
    _, values = assigned(18)
    path = tmp_path / "weights.pt"
    weight_files.write_state_dict(path, config, values)
    found, expected = pickle.loads(path.read_bytes()), reference.state_dict(18)
    assert found.keys() == expected.keys()
    for name, (kind, array) in found.items():
        assert kind == "tensor"
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
