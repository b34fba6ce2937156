"""Which files hold weights, and how those of each kind are opened."""

import contextlib
import hashlib
import pickle
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import files
from tests.unit import damaged_bytes
from tests.unit.small_checkpoint import save

ARRAYS = {"a": np.ones([2, 3], np.float32), "b": np.zeros([])}


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
def test_an_npz_file_is_read_without_the_prefix_of_a_wrapper(tmp_path, prefix):
    path = tmp_path / "weights.npz"
    np.savez(path, **{"module.a": np.ones(1), "b": np.ones(1)})  # Not that of some.
    assert files.open_file(path).shapes.keys() == {"module.a", "b"}
    np.savez(path, **{prefix + name: array for name, array in ARRAYS.items()})
    file = files.open_file(path)
    assert file.shapes == {"a": (2, 3), "b": ()}
    assert file.read("a").tolist() == [[1, 1, 1], [1, 1, 1]]
    assert not file.settings


def test_the_digest_of_weights_is_that_of_their_bytes(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"some")
    assert files.sha256(tmp_path / "a.npz") == hashlib.sha256(b"some").hexdigest()
    run = tmp_path / "run"
    run.mkdir()
    first = files.sha256(save(run, 5))
    # The results of its evaluation are no part of it, nor is its place.
    assert files.sha256(save(run, 5, eval={"top1": 0.5})) == files.sha256(run) == first
    newest = save(run, 6, {"weights": np.zeros(1000, np.float32)})
    assert files.sha256(run) == files.sha256(newest) != first
    for file in newest.glob("state.*"):
        shutil.copy(file, tmp_path / file.name.replace("state", "model.ckpt-1"))
    for name in ("model.ckpt-1", "model.ckpt-1.index"):
        assert files.sha256(tmp_path / name) == files.sha256(newest)


@pytest.fixture
def safetensors_path(tmp_path) -> Path:
    path = tmp_path / "a.safetensors"
    arrays = {"b": np.float32([[1, 2]]), "a": np.array(7), "c": np.ones(300)}
    save_file({**arrays, "half": np.array([1, -2.5], ml_dtypes.bfloat16)}, path)
    return path


def test_a_safetensors_file_is_read(safetensors_path):
    file = files.open_file(safetensors_path)
    assert file.shapes == {"b": (1, 2), "a": (), "c": (300,), "half": (2,)}
    assert file.read("b").tolist() == [[1, 2]]
    assert file.read("a").tolist() == 7
    assert np.asarray(file.read("half"), np.float32).tolist() == [1, -2.5]
    assert file.settings == {}


@pytest.mark.parametrize("num_bytes", [0, 50, -1])
def test_a_safetensors_file_that_is_cut_is_refused(safetensors_path, num_bytes):
    safetensors_path.write_bytes(safetensors_path.read_bytes()[:num_bytes])
    with pytest.raises(UserError, match=f"{safetensors_path} must be a safetensors"):
        files.open_file(safetensors_path)


def test_a_damaged_header_of_safetensors_is_refused(safetensors_path):
    content = safetensors_path.read_bytes()
    for place in range(8 + content.index(b"}}") - 8):
        damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        safetensors_path.write_bytes(damaged)
        with contextlib.suppress(UserError):  # A name may just be another.
            files.open_file(safetensors_path)


def test_what_is_not_named_arrays_in_an_npz_file_is_refused(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, a=np.array([{}]))
    with pytest.raises(UserError, match=r"arrays in NumPy's \.npz: Object arrays"):
        files.open_file(path)
    np.save(tmp_path / "array.npy", np.ones(3))
    for content in (b"PK\x03\x04 cut", (tmp_path / "array.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"must hold arrays in NumPy's \.npz: "):
            files.open_file(path)


def test_a_damaged_byte_in_an_npz_file_is_a_sentence_or_changes_nothing(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez_compressed(path, a=np.arange(300.0))
    damaged_bytes.assert_most_are_refused(path, files.open_file, 3)


@pytest.mark.parametrize("contents", [None, 'model_checkpoint_path: ""'])
def test_a_folder_without_a_name_is_refused(tmp_path, monkeypatch, contents):
    monkeypatch.chdir(tmp_path)
    if contents:
        (tmp_path / "checkpoint").write_text(contents)
    with pytest.raises(UserError, match=r"^\. must contain a checkpoint"):
        files.kind_of(Path("."))


def test_a_checkpoint_of_ours_is_known_by_its_folder_and_its_runs(tmp_path):
    folder = save(tmp_path, 3)
    assert files.kind_of(folder) == files.kind_of(tmp_path) == files.OURS


@pytest.mark.parametrize("name", ["gone.npz", "folder", "a.txt"])
def test_a_path_without_weights_is_refused(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("no weights")
    with pytest.raises(UserError, match=f"{tmp_path / name} must contain a check"):
        files.kind_of(tmp_path / name)


class Tensor:
    """What is used of PyTorch's tensors; `half` ones NumPy can't represent."""

    def __init__(self, values: Any, is_half: bool = False) -> None:
        self.values, self.is_half = np.asarray(values), is_half
        self.shape = self.values.shape

    def is_floating_point(self) -> bool:
        return self.values.dtype.kind == "f"

    def detach(self) -> "Tensor":
        return self

    def float(self) -> "Tensor":
        return Tensor(self.values.astype(np.float32))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        assert not self.is_half
        return self.values


@pytest.fixture
def load(monkeypatch, tmp_path):
    """A function that opens a .pt file in which PyTorch finds what it is given."""

    def load(found: Any):
        def load_weights(path, *, map_location, weights_only):
            assert (map_location, weights_only) == ("cpu", True)
            if isinstance(found, Exception):
                raise found
            return found

        stub: Any = types.ModuleType("torch")
        stub.Tensor, stub.load = Tensor, load_weights
        monkeypatch.setitem(sys.modules, "torch", stub)
        path = tmp_path / "weights.pt"
        path.touch()
        return files.open_file(path)

    return load


def test_only_the_weights_in_a_file_of_pytorch_are_loaded(load):
    state = {"module.a": Tensor([1.5, 2.5], is_half=True), "module.n": Tensor(7)}
    for found in (state, {"model": state, "epoch": 3}, {"state_dict": state}):
        file = load(found)
        assert file.shapes == {"a": (2,), "n": ()}
        assert file.read("a").tolist() == [1.5, 2.5]
        assert file.read("n").tolist() == 7


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({"epoch": 3}, "must hold a state dict of PyTorch; it holds other values"),
        (
            pickle.UnpicklingError("Weights only load failed. Long\nhelp."),
            "must hold a state dict of PyTorch; Weights only load failed",
        ),
        (RuntimeError("not an archive\nat"), "state dict of PyTorch; not an archive"),
        (PermissionError(13, "Permission denied"), "can't be read: Permission denied"),
    ],
)
def test_other_files_of_pytorch_are_refused_in_one_sentence(load, found, sentence):
    with pytest.raises(UserError) as caught:
        load(found)
    assert str(caught.value).endswith(sentence)


def test_without_pytorch_its_files_are_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "weights.pth"
    path.touch()
    with pytest.raises(UserError, match=f"{path} needs PyTorch to be read, .*npz"):
        files.open_file(path)
