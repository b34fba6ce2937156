"""The program of exports: what it refuses; and files that are no exports."""

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from eval import export
from resnet.base.errors import UserError
from resnet.checkpoint import restore
from resnet.config.config import Config, save_config
from resnet.export import contents, end_of_training, formats
from resnet.export.formats import ExportedNetwork
from tests.in_process import assert_refused, run
from tests.unit import exported_run

pytestmark = pytest.mark.usefixtures("one_block")


@pytest.fixture(scope="module")
def config(tmp_path_factory, make_config, one_block) -> Config:
    """The settings of a run with a checkpoint of step 20."""
    folder = tmp_path_factory.mktemp("run")
    return exported_run.save(folder, make_config(ema_decay=0.9), 20)


def set_writer(monkeypatch, name: str, write: Any) -> None:
    changed = dataclasses.replace(formats.FORMATS[name], write=write)
    monkeypatch.setitem(formats.FORMATS, name, changed)


def test_a_network_that_has_diverged_is_refused(tmp_path, make_config):
    folder = tmp_path / "run"
    folder.mkdir()
    config = exported_run.save(folder, make_config(), 20)
    trained = restore.load_network(config, folder)
    for variable in trained.model.trainable_variables:
        variable.assign(np.nan * variable)
    description = contents.of_run(config, 20, "raw", formats.FLOAT32, is_folded=True)
    with pytest.raises(UserError, match="must have finite weights"):
        formats.write("savedmodel", trained, description, tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "No space"), "written: No space"),
        (OSError("No space left on device"), "x.keras failed: No space left on device"),
    ],
)
def test_a_writer_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, error, words):
    def fail(trained: Any, contents: Any, path: Path) -> None:
        path.write_text("half")
        raise error

    set_writer(monkeypatch, "keras", fail)
    with pytest.raises(UserError, match=words):
        formats.write("keras", None, None, tmp_path / "x.keras")
    assert list(tmp_path.iterdir()) == []


def test_what_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "x.keras"

    def write(trained: Any, contents: Any, unfinished: Path) -> None:
        unfinished.write_text("ours")
        path.write_text("another's")

    set_writer(monkeypatch, "keras", write)
    with pytest.raises(UserError, match="exists already"):
        formats.write("keras", None, None, path)
    assert path.read_text() == "another's"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_pytorch_without_pytorch_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"ends in \.pth needs PyTorch to be written"):
        formats.check("torchvision", "float32", False, tmp_path / "a.pth", Config)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--out=exported"], "exported exists already, and exports replace nothing"),
        (["--out=x.onnx"], "ends as a file of --format=onnx does"),
        (["--format=keras", "--out=x"], "--out must end in .keras for --format=keras"),
        (
            ["--format=keras", "--out=x.keras", "--precision=int8"],
            "--format=keras has --precision=float32 and bf16; got int8, which onnx",
        ),
        (
            ["--out=x", "--nofold_batch_norm"],
            "trained on, keras and safetensors and torchvision; got --format=saved",
        ),
        (["--out=x", "--step=7"], "no checkpoint of step 7 is saved"),
        (["--model_dir=", "--out=x"], "--model_dir is required"),
        (["--model_dir=records", "--out=x"], "config.json"),
        (["--out=exported/x"], "--out=exported/x must be in a folder that can be writ"),
        (
            ["--format=torchvision", "--out=x.npz"],
            "only networks of --resnet_variant=torchvision can be written for",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_before_tensorflow_starts(
    config, tmp_path, monkeypatch, flags, words
):
    (tmp_path / "records").mkdir()
    (tmp_path / "exported").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export.startup, "start_on_own_cores", None)
    done = run(export, f"--model_dir={config.model_dir}", *flags)
    assert_refused(done, words)


def test_a_class_name_that_no_label_file_can_hold_is_refused(config, tmp_path):
    names = ("a", "b\nc", "d")
    other = dataclasses.replace(config, model_dir=str(tmp_path), class_names=names)
    save_config(other)
    Path(tmp_path, "checkpoints").symlink_to(Path(config.model_dir, "checkpoints"))
    done = run(export, f"--model_dir={tmp_path}", f"--out={tmp_path / 'x'}")
    assert_refused(done, r"one is 'b\nc'")
    other = dataclasses.replace(other, export_dir=str(tmp_path))
    with pytest.raises(UserError, match="must be one line of UTF-8"):
        end_of_training.check(other)


def test_an_export_has_the_mode_of_new_files_in_a_folder_made_for_it(
    tmp_path, monkeypatch
):
    """Libraries write files of mode 0600, as that of safetensors does."""

    def write(trained: Any, contents: Any, path: Path) -> None:
        (path / "assets").mkdir(parents=True)
        (path / "assets" / "private").touch(mode=0o600)

    set_writer(monkeypatch, "savedmodel", write)
    before = os.umask(0o027)
    try:
        formats.write("savedmodel", None, None, tmp_path / "a/b/x")
    finally:
        os.umask(before)
    assert (tmp_path / "a/b/x/assets/private").stat().st_mode & 0o777 == 0o640


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    config, tmp_path, monkeypatch
):
    found = formats.importlib.util.find_spec
    monkeypatch.setattr(
        formats.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "openvino" else found(name, *rest),
    )
    done = exported_run.export(config, "openvino", tmp_path / "x")
    assert_refused(done, "openvino, which is not installed. Run python -m pip install")


def test_the_packages_of_the_formats_are_those_of_the_extra():
    root = Path(__file__).resolve().parents[2]
    text = (root / "requirements-export.in").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", text, re.M))
    assert len(pinned) > 3
    named = {
        requirement
        for kind in formats.FORMATS.values()
        for requirement in kind.packages.values()
    }
    for requirement in named:
        name, operator, version = re.fullmatch(r"(.*)([>=]=)(.*)", requirement).groups()
        assert operator == ">=" or pinned[name] == version
        del pinned[name]
    assert pinned == {}


def test_a_file_that_is_no_export_is_refused(config, tmp_path):
    (tmp_path / "x.keras").write_bytes(b"PK")
    (tmp_path / "x.tflite").write_bytes(b"TFL3")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("none", "there is no such file"),
        ("folder", "its format is none of savedmodel"),
        ("x.keras", "it has no description"),
        ("x.tflite", "it has no description"),
    ):
        with pytest.raises(UserError, match=words):
            ExportedNetwork(tmp_path / name)
    later = tmp_path / "later"
    later.mkdir()
    (later / "saved_model.pb").touch()
    (later / "assets.extra").mkdir()
    file = later / "assets.extra" / "contents.json"
    file.write_text('{"format_version": 99}')
    with pytest.raises(UserError, match="a later version of the program wrote it"):
        ExportedNetwork(later)
    file.write_text("{}")
    with pytest.raises(UserError, match="'model' is missing"):
        ExportedNetwork(later)
    described = contents.of_run(config, 20, "ema", "float32", True)
    file.write_text(described.as_json())
    with pytest.raises(UserError, match="later can't be loaded"):
        ExportedNetwork(later).load()
