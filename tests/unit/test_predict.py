"""The program of predictions: what it predicts, and what it refuses."""

import dataclasses
import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

import resnet
from data_prep.images import depth
from data_prep.records import manifest
from eval import export, predict
from eval.predict import Predicted, Table
from resnet.checkpoint import restore
from resnet.config.config import Config, save_config
from resnet.evaluation.predictor import top_classes
from resnet.export import contents
from resnet.optim.train_state import TrainState
from tests.converter_program import convert_here
from tests.in_process import Done, assert_refused, run, succeeded
from tests.record_reader import read_examples
from tests.unit import exported_run
from tests.unit.encoded_images import encode, noise, png_of, tiff_of

pytestmark = pytest.mark.usefixtures("one_block")

CLASSES = ("ant", "bee", "cat")
LOSSLESS = {
    "1.png": ("PNG", "RGB", {}),
    "2.webp": ("WEBP", "RGB", {"lossless": True}),
    "3.png": ("PNG", "RGBA", {}),
    "4.bmp": ("BMP", "L", {}),
}
LOSSY = {
    "5.webp": ("WEBP", "RGB", {}),
    "6.jpg": ("JPEG", "CMYK", {}),
    "7.jpg": ("JPEG", "RGB", {}),
}


def write_images(folder: Path, kinds: dict[str, tuple[str, str, dict]]) -> None:
    """Writes images of noise, each in a class folder, for both splits."""
    for split in ("train", "val"):
        for number, (name, (kind, mode, options)) in enumerate(kinds.items()):
            path = folder / split / CLASSES[number % 3] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # Large pixels, so that they are not all gray after resizing.
            image = noise(mode).crop((number, 0, number + 6, 8)).resize((90, 70))
            path.write_bytes(encode(image, kind, **options))


@pytest.fixture(scope="module")
def run_with_ema(tmp_path_factory, make_config, one_block) -> Config:
    """A run with two checkpoints, whose training set is gone."""
    folder = tmp_path_factory.mktemp("run")
    settings = {"ema_decay": 0.9, "data_dir": str(folder / "gone")}
    return exported_run.save(folder, make_config(500, CLASSES, **settings), 10, 20)


def evaluated(config: Config, records: Path, step: int, weights: str) -> dict[str, Any]:
    """Returns the probabilities of the Evaluator's network by the files' names."""
    rows = exported_run.evaluated(config, records, weights, "validation", step)
    names = [example["file"] for example in read_examples(records, "validation")]
    return dict(zip(names, rows, strict=True))


def predicted(done: Done) -> dict[str, np.ndarray]:
    """Returns the probabilities that the program has printed, by the files' names."""
    found = {}
    for line in map(json.loads, done.stdout.splitlines()):
        row = np.full(len(CLASSES), np.nan)
        for one in line["predictions"]:
            assert one["class"] == CLASSES[one["index"]]
            row[one["index"]] = one["probability"]
        found[Path(line["image"]).name] = row
    return found


@pytest.mark.parametrize(
    ("kinds", "crop", "flags", "step", "weights", "has_set"),
    [
        (LOSSLESS, "crop_then_resize", [], 20, "ema", True),
        (LOSSLESS, "resize_then_crop", ["--step=10", "--weights=raw"], 10, "raw", None),
        (LOSSLESS | LOSSY, "crop_then_resize", ["--weights=raw"], 20, "raw", True),
    ],
    ids=["png set", "png set that is gone", "jpeg set"],
)
def test_probabilities_are_those_of_the_evaluation_of_a_converted_set(
    run_with_ema, tmp_path, kinds, crop, flags, step, weights, has_set
):
    raw, records = tmp_path / "raw", tmp_path / "records"
    write_images(raw, kinds)
    succeeded(convert_here(raw, records, "--num_processes=1"))
    config = dataclasses.replace(
        run_with_ema,
        eval_crop=crop,
        channel_mean=(0.4, 0.5, 0.6),
        data_dir=str(records) if has_set else "",
    )
    save_config(config)
    expected = evaluated(config, records, step, weights)
    folders = (f"--model_dir={config.model_dir}", str(raw / "val"))
    done = run(predict, *folders, "--json", "--batch_size=3", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    ours = predicted(done)
    assert ours.keys() == expected.keys() == kinds.keys()
    for name, probabilities in ours.items():
        np.testing.assert_allclose(probabilities, expected[name], rtol=0, atol=1e-6)
    # Or it tells nothing.
    assert np.ptp(list(expected.values()), axis=0).max() > 1e-5


def program(config: Config, stdin: str = "") -> Callable[..., Done]:
    """Returns a function that runs the program with a run and a standard input."""

    def run_it(*arguments: Any) -> Done:
        given = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        with mock.patch.object(sys, "stdin", given):
            return run(predict, f"--model_dir={config.model_dir}", *map(str, arguments))

    return run_it


def test_images_that_cannot_be_read_are_named_and_the_others_predicted(
    run_with_ema, tmp_path
):
    write_images(tmp_path, LOSSY)
    bad, good = tmp_path / "bad.jpg", tmp_path / "val" / "cat" / "7.jpg"
    bad.write_bytes(good.read_bytes()[:-200])
    names = f"{tmp_path / 'missing.png'}\n\n{good}\r\n"
    done = program(run_with_ema, names)(bad, "-", "--top_k=2")
    assert done.returncode == 2
    *_, first, second = done.stderr.splitlines()  # The set's absence may come before.
    assert first.startswith(f"error: {tmp_path / 'missing.png'} must be an image")
    assert second.startswith(f"error: {bad} can't be decoded as an image")
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["image", "class", "probability"]
    assert len(lines) == 2
    assert str(good) in lines[0]


def test_warnings_of_decoders_in_threads_are_not_shown(recwarn):
    """A thread can restore the filters of the process while another one decodes."""

    def of_file(path: str, *_: Any) -> bytes:
        warnings.warn("Corrupt EXIF data", stacklevel=1)
        return path.encode()

    network = mock.Mock(preprocess=mock.Mock(of_file=of_file))
    images = predict.read_images(["a", "b"], network, network, print)
    assert images == [("a", b"a"), ("b", b"b")]
    assert not recwarn.list


def test_a_class_is_described_if_it_is_a_synset(run_with_ema, tmp_path, monkeypatch):
    write_images(tmp_path, {"1.png": LOSSLESS["1.png"]})
    synsets = ("n01440764", "n01443537", "n01484850")
    config = dataclasses.replace(run_with_ema, class_names=synsets)
    monkeypatch.setattr(predict, "load_config", lambda _: config)
    done = program(config)(tmp_path / "val", "--top_k=3")
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {config.data_dir} no longer has the rec")
    assert "n01440764  tench, Tinca tinca" in done.stdout


def test_what_cannot_be_is_refused_before_tensorflow_starts(
    run_with_ema, make_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(predict, "predict_all", None)
    monkeypatch.setattr(contents, "training_set", lambda _: None)  # It may warn.
    ours = program(run_with_ema)
    for arguments, words in (
        ([], "images are required"),
        (["x.jpg"], "x.jpg must be an image or a folder; there is no such file"),
        (["-"], "standard input must name images; it is empty"),
        (["x", "--top_k=4"], "--top_k must be at most 3, the number of classes"),
        (["x", "--step=15"], "no checkpoint of step 15 is saved"),
        (["x", "--exported_model=y"], "exactly one of --model_dir and --exported"),
    ):
        assert_refused(ours(*arguments), words)
    for arguments, words in (
        (["--exported_model=none"], "none must be an exported network; there is no"),
        (["--exported_model=none", "--weights=raw"], "--weights is for --model_dir"),
    ):
        assert_refused(run(predict, "x", *arguments), words)
    assert_refused(run(predict, "x", f"--model_dir={tmp_path}"), "config.json")
    config = dataclasses.replace(make_config(), model_dir=str(tmp_path))
    save_config(config)
    new = program(config)
    assert_refused(new("x"), "no checkpoint has been saved")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    assert_refused(new("x", "--weights=ema"), "--weights=ema needs a run with EMA")


@pytest.mark.parametrize("name", ["network", "network.onnx"])
def test_an_exported_network_predicts_as_its_run_does(run_with_ema, tmp_path, name):
    raw, path = tmp_path / "raw", tmp_path / name
    write_images(raw, LOSSLESS | LOSSY)
    folder = f"--model_dir={run_with_ema.model_dir}"
    kind = path.suffix.removeprefix(".") or "savedmodel"
    done = succeeded(run(export, folder, f"--out={path}", f"--format={kind}"))
    expected = predicted(run(predict, folder, "--json", str(raw / "val")))
    exported = f"--exported_model={path}"
    done = run(predict, exported, "--json", "--batch_size=3", str(raw / "val"))
    assert (done.returncode, done.stderr) == (0, "")
    ours = predicted(done)
    assert ours.keys() == expected.keys() == (LOSSLESS | LOSSY).keys()
    for image, probabilities in ours.items():
        np.testing.assert_allclose(probabilities, expected[image], rtol=0, atol=1e-5)
    done = run(predict, exported, "--top_k=4", "x")
    assert_refused(done, "--top_k must be at most 3, the number of classes of the net")


@pytest.mark.parametrize("flags", [["--apply_exif_orientation"], []])
def test_images_are_turned_and_scaled_as_those_of_the_set(
    run_with_ema, tmp_path, flags
):
    raw, records = tmp_path / "raw", tmp_path / "records"
    exported = tmp_path / "exported.keras"
    write_images(raw, LOSSLESS)
    window = 700, 3_500
    flags = [*flags, f"--depth_window={window[0]},{window[1]}"]
    succeeded(convert_here(raw, records, "--num_processes=1", *flags))
    exif = Image.Exif()
    exif[0x0112] = 6  # The orientation: upright after a quarter turn clockwise.
    with Image.open(raw / "val" / "ant" / "1.png") as upright:
        turned = upright.transpose(Image.Transpose.ROTATE_90)
    upright.save(tmp_path / "upright.png")
    turned.save(tmp_path / "turned.png")
    turned.save(tmp_path / "photo.png", exif=exif)
    samples = 700 + 13 * np.asarray(turned).astype(np.uint16)  # Of 12 bits.
    (tmp_path / "deep.png").write_bytes(png_of(samples, 2))
    (tmp_path / "deep.tif").write_bytes(tiff_of(samples, ">", 5))
    Image.fromarray(depth.table(window)[samples]).save(tmp_path / "scaled.png")
    names = ["upright.png", "turned.png", "photo.png"]
    names += ["scaled.png", "deep.png", "deep.tif"]
    names = [str(tmp_path / name) for name in names]
    config = dataclasses.replace(
        run_with_ema,
        data_dir=str(records),
        depth_window=manifest.load(str(records), "train").manifest.depth_window,
    )
    config = exported_run.save(tmp_path / "run", config, 1)
    folder = f"--model_dir={config.model_dir}"
    networks = [folder]
    if len(flags) > 1:
        assert run(export, folder, f"--out={exported}", "--format=keras").stdout
        networks.append(f"--exported_model={exported}")
    found = [resnet.load(config.model_dir).probabilities(names)]
    for network in networks:
        done = run(predict, network, "--json", *names)
        found.append(np.stack(list(predicted(done).values())))
    for upright_row, turned_row, photo_row, scaled_row, *deep_rows in found:
        assert np.abs(upright_row - turned_row).max() > 1e-4  # Or it tells nothing.
        expected = upright_row if len(flags) > 1 else turned_row
        np.testing.assert_allclose(photo_row, expected, rtol=0, atol=1e-6)
        assert np.abs(scaled_row - turned_row).max() > 1e-5
        for row in deep_rows:
            np.testing.assert_allclose(row, scaled_row, rtol=0, atol=1e-6)


def test_a_diverged_network_is_refused(make_config, tmp_path):
    write_images(tmp_path, {"1.png": LOSSLESS["1.png"]})
    config = exported_run.save(tmp_path / "run", make_config(500, CLASSES), 1)
    state = TrainState(config)
    for variable in state.trainable_variables:
        variable.assign(np.full(variable.shape, np.nan))
    with mock.patch.object(restore, "load_network", return_value=state):
        assert_refused(program(config)(tmp_path / "val"), "predicts NaN or infinity")


def test_of_equally_probable_classes_the_earlier_is_first():
    rows = np.array([[0.2, 0.4, 0.4, 0.0], [0.25, 0.25, 0.25, 0.25]], np.float32)
    best = top_classes(rows, 3, multi_label=False)
    assert np.array(best).tolist() == [[1, 2, 0], [0, 1, 2]]
    # Enough classes that an unstable sort mixes them.
    many = np.tile(np.array([0.25, 0.5], np.float32), (1, 500))
    (best,) = top_classes(many, None, multi_label=False)
    assert best.tolist() == [1, 3, 5, 7, 9]


def test_folders_are_searched_in_order_without_hidden_and_other_files(tmp_path, capsys):
    images = ["a.jpeg", "z.gif", "b/10.jpg", "b/2.PNG", "b/a/1.webp"]
    others = [".hidden.jpg", ".git/1.jpg", "notes.txt", "b/list.csv"]
    for name in (*images[::-1], *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    problems: list[str] = []
    # A file that is named may have any name.
    for names, paths in (([""], images), (others, others)):
        given = [f"{tmp_path}/{name}" for name in names]
        found = predict.find_images(given, problems.append)
        assert [os.path.relpath(path, tmp_path) for path in found] == paths
        ignored = capsys.readouterr().err.splitlines()
        expected = ["ignored 2 files without the extension of an image"]
        assert ignored == (expected if paths == images else [])
    assert problems == []


CAT = Predicted("cat", "", 3, 0.75)


def test_a_table_has_a_line_for_each_class_and_names_each_image_once(capsys):
    table = Table(["a/1.jpg", "2.jpg"], ["cat", "otter"], ())
    table.add("a/1.jpg", [CAT, Predicted("otter", "", 0, 0.25)])
    table.add("2.jpg", [Predicted("cat", "", 3, 1.0)])
    assert capsys.readouterr().out == (
        "image    class  probability\n"
        "a/1.jpg  cat        75.00 %\n"
        "         otter      25.00 %\n"
        "2.jpg    cat       100.00 %\n"
    )


@pytest.mark.parametrize("columns", [70, 80, 150, 0])
def test_long_names_are_shortened_to_the_width_of_a_terminal_only(
    capsys, monkeypatch, columns
):
    is_terminal = columns > 0
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    path, name, words = "/long" * 40 + "/end.jpg", "n" * 90, "tench, Tinca tinca " * 9
    for description in ("", words):
        table = Table([path], [name], (description,) * bool(description))
        table.add(path, [Predicted(name, description, 0, 1.0)])
        head, line = capsys.readouterr().out.splitlines()
        if not is_terminal:
            assert line.startswith(f"{path}  {name}  {description}")
            continue
        assert len(head) == len(line) == columns
        assert line.startswith("...")
        assert "/end.jpg  nnnnnn" in line
        assert line.endswith("...     100.00 %")
        assert ("description" in head) == ("tench, Tinca" in line) == bool(description)
