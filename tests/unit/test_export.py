"""The program of exports: what each format computes without this project."""

import dataclasses
import io
import json
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from safetensors import safe_open

from data_prep.records import manifest
from resnet.checkpoint import restore, tensors
from resnet.config.config import Config
from resnet.data.augmentation import preprocessing
from resnet.evaluation.predictor import Preprocessor
from resnet.export import contents, end_of_training, formats
from resnet.export.formats import ExportedNetwork
from resnet.watchdog import history
from tests.in_process import Done, succeeded
from tests.unit import exported_run

pytestmark = pytest.mark.usefixtures("one_block")

CLASSES = ("<ant>", "bee & ü", "c")
# The largest difference of a probability from that of the evaluation. The weights are
# random, so values have wide ranges for 8 bits.
TOLERANCES = {
    "savedmodel": 1e-4,
    "savedmodel of files": 1e-4,
    "keras": 1e-4,
    "onnx": 1e-4,
    "tflite": 1e-4,
    "bf16 keras": 0.03,
    "int8 onnx": 0.1,
    "int8 tflite": 0.1,
}
FILES = {
    "savedmodel": ("exported", ()),
    "keras": ("exported.keras", ()),
    "onnx": ("exported.onnx", ()),
    "tflite": ("exported.tflite", ()),
    "safetensors": ("exported.safetensors", ()),
    "bf16 keras": ("bf16.keras", ("--precision=bf16",)),
    "bf16 safetensors": ("bf16.safetensors", ("--precision=bf16",)),
    "int8 onnx": ("int8.onnx", ("--precision=int8",)),
    "int8 tflite": ("int8.tflite", ("--precision=int8",)),
    "unfolded safetensors": ("unfolded.safetensors", ("--nofold_batch_norm",)),
}
# The others are written as the program does it.
BY_THE_PROGRAM = ("savedmodel", "int8 onnx", "bf16 keras", "unfolded safetensors")


def outputs_of(
    path: Path, images: np.ndarray, files: list[bytes]
) -> dict[str, dict[str, Any]]:
    """Returns what an export computes without this project, by the kind of input."""
    if path.is_dir():
        signatures = tf.saved_model.load(str(path)).signatures
        for signature in signatures.values():
            graph = str(signature.graph.as_graph_def())  # With those that it calls.
            assert 'op: "' in graph
            assert 'op: "Resnet' not in graph
        return {
            "": signatures["decoded_images"](images=tf.constant(images)),
            " of files": signatures["serving_default"](image_bytes=tf.constant(files)),
        }
    if path.suffix == ".keras":
        return {"": keras.models.load_model(path)(images, training=False)}
    if path.suffix == ".onnx":
        import onnxruntime  # Here, since every process reads this file.

        names = ("classes", "probabilities")
        session = onnxruntime.InferenceSession(path)
        outputs = session.run(names, {"images": images})
        return {"": dict(zip(names, outputs, strict=True))}
    if path.suffix == ".tflite":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner = tf.lite.Interpreter(str(path)).get_signature_runner()
        return {"": runner(images=images)}
    return {}


@dataclasses.dataclass(frozen=True)
class Exports:
    """The exports of a run, and what they compute for its images."""

    folder: Path
    config: Config
    done: dict[str, Done]  # The ends of the program, by what it has exported.
    images: np.ndarray  # Decoded.
    expected: np.ndarray  # The probabilities of the evaluation.
    found: dict[str, np.ndarray]  # By the names of exports and of their outputs.


def preprocessor(config: Config) -> Preprocessor:
    return Preprocessor(
        config.image_size,
        config.eval_crop_fraction,
        config.eval_crop,
        preprocessing.NOT_NORMALIZED,
    )


@pytest.fixture(scope="module")
def exports(
    tmp_path_factory, make_config, write_tiny_set, read_split, one_block
) -> Exports:
    folder = tmp_path_factory.mktemp("exports")
    records = folder / "records"
    records.mkdir()
    labels = [number % 3 for number in range(12)]
    write_tiny_set(records, exported_run.images(), labels, CLASSES, [4, 8])
    settings = {"ema_decay": 0.9, "data_dir": str(records)}
    config = make_config(12, CLASSES, **settings)
    config = exported_run.save(folder / "run", config, 20)
    trained, done = restore.load_network(config, folder / "run", 20), {}
    for name, (file, flags) in FILES.items():
        kind, path = name.split()[-1], folder / file
        if name in BY_THE_PROGRAM:
            done[name] = exported_run.export(config, kind, path, *flags)
            continue
        precision = name.split()[0] if " " in name else formats.FLOAT32
        described = contents.of_run(config, 20, trained.weights, precision)
        formats.write(kind, trained, described, path)
    split = read_split(manifest.load(str(records), "train"), "train")
    files = [encoded for _, encoded in split]
    decode = preprocessor(config)
    images = np.stack([decode(encoded, "jpeg").numpy() for encoded in files])
    found = {
        f"{name}{kind}/{output}": np.asarray(values)
        for name, (file, _) in FILES.items()
        for kind, outputs in outputs_of(folder / file, images, files).items()
        for output, values in outputs.items()
    }
    expected = exported_run.evaluated(config, records, "ema")
    return Exports(folder, config, done, images, expected, found)


def test_the_program_says_what_it_has_written(exports):
    for name, done in exports.done.items():
        assert done.returncode == 0, done.stderr
        path = exports.folder / FILES[name][0]
        assert done.stdout.startswith(f"{path}: resnet8 of step 20 (ema weights), 3 cl")
    left = {path.name for path in exports.folder.iterdir()}
    names = {file for file, _ in FILES.values()}
    assert left - names == {"records", "run"}


@pytest.mark.parametrize("name", TOLERANCES)
def test_without_this_project_an_export_computes_what_evaluation_does(exports, name):
    assert len(set(exports.expected.argmax(1))) > 1  # Or it tells little.
    found = exports.found[f"{name}/probabilities"]
    assert found.dtype == np.float32
    tolerance = TOLERANCES[name]
    np.testing.assert_allclose(found, exports.expected, rtol=0, atol=tolerance)
    classes = exports.found[f"{name}/classes"]
    if tolerance == 1e-4:
        np.testing.assert_array_equal(classes, exports.expected.argmax(1))
    else:  # It isn't float32 after all.
        np.testing.assert_array_equal(classes, found.argmax(1))
        assert np.abs(found - exports.expected).max() > 1e-5


@pytest.mark.parametrize("name", ["savedmodel", "keras", "tflite", "int8 onnx"])
def test_an_export_describes_itself_and_is_read_again(exports, name):
    path = exports.folder / FILES[name][0]
    exported = ExportedNetwork(path)
    contents = exported.contents
    assert contents.class_names == CLASSES
    assert (contents.model, contents.step, contents.weights) == ("resnet8", 20, "ema")
    precision = name.split()[0] if " " in name else "float32"
    assert contents.precision == precision
    assert contents.image_format == "jpeg"
    found = exported.load().probabilities(exports.images)
    expected = exports.found[f"{name}/probabilities"]
    # In bfloat16 it matters which ops are fused, and so round once.
    tolerance = 0.03 if precision == "bf16" else 1e-6
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_safetensors_holds_the_variables_of_the_network(exports):
    saved = tensors.load(Path(exports.config.model_dir), 20).tensors
    ours = {n.removeprefix("ema/"): v for n, v in saved.items() if n.startswith("ema/")}
    read = {}
    for name in ("safetensors", "bf16 safetensors", "unfolded safetensors"):
        with safe_open(exports.folder / FILES[name][0], "np") as file:
            text = file.metadata()["resnet_cpu"]
            read[name] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - It has no others.
        assert json.loads(text)["class_names"] == list(CLASSES)
        assert json.loads(text)["is_folded"] == (name != "unfolded safetensors")
    unfolded = read["unfolded safetensors"]
    assert unfolded.keys() == ours.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(unfolded[name], value)
    folded = read["safetensors"]
    scale = ours["stem/gamma"] / np.sqrt(ours["stem/moving_variance"] + 1e-5)
    np.testing.assert_allclose(
        folded["stem/kernel"], ours["stem/kernel"] * scale, rtol=1e-5, atol=0
    )
    shift = ours["stem/beta"] - ours["stem/moving_mean"] * scale
    np.testing.assert_allclose(folded["stem/bias"], shift, rtol=1e-4, atol=1e-6)
    assert set(folded) == {
        f"{name}/{part}"
        for name in (key.split("/")[0] for key in ours)
        for part in ("kernel", "bias")
    }
    last = read["bf16 safetensors"]["classifier/kernel"]
    np.testing.assert_array_equal(last, folded["classifier/kernel"])
    rounded = read["bf16 safetensors"]["stem/kernel"]
    assert rounded.dtype.name == "bfloat16"
    np.testing.assert_allclose(
        rounded.astype(np.float32), folded["stem/kernel"], rtol=2**-8, atol=0
    )


def test_a_saved_model_reads_files_of_any_size_as_evaluation_does(exports, tmp_path):
    """Of PNGs and of gray JPEGs, too."""
    config = dataclasses.replace(
        exports.config,
        eval_crop="resize_then_crop",
        data_dir="",
        model_dir=str(tmp_path),
    )
    exported_run.save(tmp_path, config, 1)
    succeeded(exported_run.export(config, "savedmodel", tmp_path / "out"))
    pixels = np.random.default_rng(3).integers(0, 256, (6, 8, 3), np.uint8)
    files = []
    for kind, mode, size in (
        ("JPEG", "RGB", (70, 50)),
        ("JPEG", "L", (45, 90)),
        ("PNG", "RGB", (33, 64)),
        ("PNG", "L", (20, 21)),
    ):
        file = io.BytesIO()
        Image.fromarray(pixels).convert(mode).resize(size).save(file, kind)
        files.append((file.getvalue(), kind.lower()))
    decode = preprocessor(config)
    images = tf.stack([decode(*file) for file in files])
    signatures = tf.saved_model.load(str(tmp_path / "out")).signatures
    expected = signatures["decoded_images"](images=images)["probabilities"]
    encoded = tf.constant([file for file, _ in files])
    found = signatures["serving_default"](image_bytes=encoded)["probabilities"]
    assert np.ptp(expected, 0).max() > 0.01  # Or it tells nothing.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="image 1 of the batch"):
        signatures["serving_default"](image_bytes=tf.constant([files[0][0], b"GIF89a"]))


def test_a_network_is_exported_again_only_if_it_was_trained_again(
    exports, tmp_path, monkeypatch
):
    seconds = iter(range(100))
    monkeypatch.setattr(time, "time", lambda: next(seconds))
    written = []
    monkeypatch.setattr(
        formats,
        "write",
        lambda name, trained, described, path: (path.mkdir(), written.append(path)),
    )
    config = exported_run.save(tmp_path / "run", exports.config, 20)

    def export(step: int, folder: str) -> int:
        """Exports after a start from a step; returns the number of exports so far."""
        history.append(Path(config.model_dir), "start", step=step)
        to = dataclasses.replace(config, export_dir=str(tmp_path / folder))
        end_of_training.check(to)
        end_of_training.export(to, exported_run.ALONE)
        return len(written)

    assert [export(step, "first") for step in (0, 20, 20)] == [1, 1, 1]
    assert export(20, "second") == 2
    assert [export(step, "first") for step in (20, 15)] == [2, 3]
    written[-1].rmdir()
    assert export(20, "first") == 4
