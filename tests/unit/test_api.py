"""`import resnet`: what it loads, and that its numbers are those of the programs."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import resnet
from eval import predict, resnet_eval
from resnet.base.errors import UserError
from resnet.config import networks
from resnet.config.config import Config, save_config
from resnet.data import record_sets
from resnet.runtime import precision
from tests import in_process
from tests.processes import completed
from tests.unit import exported_run

pytestmark = pytest.mark.usefixtures("one_block")

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("class0", "class1", "class2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, records) -> Path:
    """A folder with the set in RECORDS and two of its images."""
    folder = tmp_path_factory.mktemp("api")
    raw = records.parent / "raw" / "validation"
    for name, number in (("cat.jpg", 0), ("dog.jpg", 1)):
        (folder / name).symlink_to(raw / f"class{number}" / "1.jpg")
    (folder / "RECORDS").symlink_to(records)
    return folder


@pytest.fixture(scope="module")
def run(folder, make_config, one_block) -> Config:
    """A run with EMA weights and two checkpoints, in the folder MODEL."""
    settings = {"ema_decay": 0.9, "data_dir": str(folder / "RECORDS")}
    config = make_config(24, CLASSES, **settings)
    return exported_run.save(folder / "MODEL", config, 10, 20)


@pytest.fixture(scope="module")
def network(run) -> resnet.Network:
    return resnet.load(run.model_dir)


def test_importing_the_package_loads_neither_tensorflow_nor_flags():
    code = (
        "import sys, resnet; names = dir(resnet); assert 'load' in names;"
        "slow = {'tensorflow', 'absl', 'numpy', 'resnet.api'};"
        "print(sorted(slow & set(sys.modules)));"
        "resnet.network_names(); print('tensorflow' in sys.modules)"
    )
    done = completed([sys.executable, "-c", code], cwd=ROOT)
    assert (done.stdout, done.stderr) == ("[]\nFalse\n", "")
    with pytest.raises(AttributeError, match="no attribute 'nothing_such'"):
        _ = resnet.nothing_such
    for name in resnet.__all__:
        assert getattr(resnet, name).__doc__


def test_the_version_is_that_of_the_citation():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {resnet.__version__}" in lines


def test_a_set_without_validation_is_opened(numbered_set):
    assert resnet.open_records(numbered_set).num_examples == {"train": 13}


def test_the_lines_of_the_page_run(folder, run, monkeypatch, capsys):
    lines = re.search(
        r"```python\n(import resnet\n.*?)```",
        (ROOT / "docs/python.md").read_text(),
        re.S,
    )[1]
    code = [line for line in lines.splitlines() if line.strip()]
    assert len(code) <= 10
    monkeypatch.chdir(folder)
    row = networks.MODELS[run.model]
    monkeypatch.setitem(networks.MODELS, run.model, row._replace(image_size=32))
    exec(lines.replace('"resnet50"', f'"{run.model}"'), values := {})
    assert values["network"].step == 20
    assert values["result"].count == 11
    assert values["other"].config.class_names == CLASSES
    assert len(capsys.readouterr().out.splitlines()) == 4


def evaluated_by_program(config: Config, folder: Path, *flags: str) -> dict:
    """Returns what eval/resnet_eval.py writes about a run."""
    folders = (f"--data_dir={config.data_dir}", f"--model_dir={config.model_dir}")
    file = folder / "eval.json"
    done = in_process.run(resnet_eval, *folders, f"--json_file={file}", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


def test_evaluation_equals_that_of_the_program(folder, run, network, tmp_path):
    records = resnet.open_records(folder / "RECORDS")
    assert records.num_examples == {"train": 24, "validation": 11}
    assert repr(records) == "<RECORDS: 24 train and 11 validation images, 3 classes>"
    flags = ("--eval_batch_size=4", "--checkpoints=all")
    results = evaluated_by_program(run, tmp_path, *flags)["results"]
    assert len(results) == 4  # Of two steps, raw and EMA weights.
    saved = Path(run.model_dir) / "checkpoints" / "step-00000010"
    raw = resnet.load(saved, weights="raw")
    for loaded, weights in ((network, "ema"), (raw, "raw")):
        (expected,) = (
            result
            for result in results
            if (result["global_step"], result["weights"]) == (loaded.step, weights)
        )
        result = loaded.evaluate(records, batch_size=4).as_dict()
        assert result["count"] == 11
        assert {name: expected[name] for name in result} == pytest.approx(
            result, abs=1e-6
        )


def test_evaluations_have_the_views_and_classes_of_the_run(folder, run, tmp_path):
    names = ("more", *CLASSES[::-1])
    config = dataclasses.replace(
        run, eval_views="flip", class_names=names, num_classes=4
    )
    config = exported_run.save(folder / "FLIPPED", config, 10)
    by_program = evaluated_by_program(config, tmp_path, "--weights=ema")
    assert by_program["views"] == "flip"
    (expected,) = by_program["results"]
    network, records = resnet.load(config.model_dir), resnet.open_records(run.data_dir)
    result = network.evaluate(records, batch_size=4).as_dict()
    assert {name: expected[name] for name in result} == pytest.approx(result, abs=1e-6)
    network.config = dataclasses.replace(config, eval_views="center")
    assert network.evaluate(records, batch_size=4).loss != expected["loss"]


def test_a_set_without_some_of_the_classes_is_evaluated_by_their_names(folder, run):
    names = ("class2", "a", "b", "class1", "class0")
    network = resnet.build(run.model, names, recipe="digits")
    network.model.get_layer("classifier").bias.assign([100.0, 0, 0, 0, 0])
    result = network.evaluate(resnet.open_records(folder / "RECORDS"), batch_size=4)
    assert result.top1 == pytest.approx(3 / 11)  # The images of class2.


def test_a_set_with_another_window_is_not_evaluated(network, monkeypatch):
    records = resnet.open_records(network.config.data_dir)
    contents = dataclasses.replace(records.record_set.manifest, depth_window=(5, 9))
    record_set = dataclasses.replace(records.record_set, manifest=contents)
    config = dataclasses.replace(network.config, depth_window=(0, 9))
    monkeypatch.setattr(network, "config", config)
    refused = r"window of the network, \(0, 9\); theirs is \(5, 9\)\. "
    with pytest.raises(UserError, match=refused):
        network.evaluate(dataclasses.replace(records, record_set=record_set))
    with pytest.raises(UserError, match=r"window of the run in M, \(0, 9\)"):
        record_sets.check_fits(record_set, config, "the run in M")
    for window in (), (5, 9):  # No image of 16 bits, or the same window.
        config = dataclasses.replace(config, depth_window=window)
        record_sets.check_fits(record_set, config, "the run in M")


def test_predictions_equal_those_of_the_program(folder, run, network):
    images = [folder / "cat.jpg", folder / "dog.jpg"]
    done = in_process.run(
        predict, f"--model_dir={run.model_dir}", "--json", *map(str, images)
    )
    expected = [json.loads(line)["predictions"] for line in done.stdout.splitlines()]
    for ours, others in zip(network.predict(images), expected, strict=True):
        for best, other in zip(ours, others, strict=True):
            assert (best.class_name, best.label) == (other["class"], other["index"])
            assert best.probability == pytest.approx(other["probability"], abs=1e-6)
    (first,) = network.predict(images[:1], top_k=1)
    assert first == network.predict(images, batch_size=1)[0][:1]


def test_arrays_are_predicted_as_files_of_the_same_pixels(
    folder, run, network, tmp_path
):
    pixels = np.asarray(Image.open(folder / "cat.jpg"))
    Image.fromarray(pixels).save(tmp_path / "cat.png")
    # A network of a JPEG set sees a PNG as the JPEG that the converter would make.
    lossless = dataclasses.replace(run, data_dir="")
    save_config(lossless)
    by_file = resnet.load(run.model_dir).probabilities([tmp_path / "cat.png"])
    save_config(run)
    np.testing.assert_allclose(network.probabilities([pixels]), by_file, atol=1e-6)
    assert network.probabilities([]).shape == (0, 3)


def test_a_network_takes_the_weights_of_a_run_and_says_what_it_lacks(
    run, network, monkeypatch
):
    monkeypatch.setattr(precision, "choose", lambda requested, _: "float32")
    settings = {"weights": run.model_dir, "recipe": "digits"}
    same = resnet.build(run.model, CLASSES, **settings)
    loaded = resnet.load(run.model_dir, weights="raw")
    pairs = zip(same.model.variables, loaded.model.variables, strict=True)
    for variable, other in pairs:
        np.testing.assert_array_equal(variable, other)
    assert len(same.limits) == len(network.limits) == 1
    new = resnet.build(run.model, np.int64(5), precision="auto", **settings)
    assert new.config.precision == "float32"
    assert new.config.class_names == ("0", "1", "2", "3", "4")
    assert new.model.output_shape == (None, 5)
    assert "and a new classifier" in repr(new)
    assert "can't tell classes apart" in new.limits[-1]
    random = resnet.build(run.model, CLASSES, recipe="digits", seed=3)
    assert "can't tell classes apart" in random.limits[-1]


def test_mistakes_are_sentences(folder, run, network, tmp_path):
    records = resnet.open_records(folder / "RECORDS")
    other = resnet.build(run.model, ("a", "b", "c"), recipe="digits")
    gray = np.zeros((40, 40), np.uint8)
    checkpoint = Path(run.model_dir) / "checkpoints" / "step-00000010"
    for call, message in (
        (lambda: resnet.build("resnet51"), "got resnet51. Did you mean resnet50"),
        (lambda: resnet.load(tmp_path), "there is no such file"),
        (lambda: resnet.load(run.model_dir, step=11), "11"),
        (lambda: resnet.load(checkpoint, step=20), "is one checkpoint; got step=20"),
        (lambda: resnet.build("resnet20", 0), "how many, at least 1; got 0"),
        (lambda: resnet.build("resnet20", ()), r"how many, at least 1; got \(\)"),
        (lambda: resnet.load(run.model_dir, weights="best"), "raw or ema; got 'best'"),
        (lambda: resnet.open_records(tmp_path), "is not a record set"),
        (lambda: other.evaluate(records), r"has 3 \(a, .*; 3 of the 3 .*: class0, "),
        (lambda: network.evaluate(records, "test"), "train, validation; got test"),
        (lambda: network.evaluate(records, batch_size=0), "at least 1; got 0"),
        (lambda: network.predict([gray]), r"got \[40, 40\] of uint8"),
        (lambda: network.predict("cat.jpg"), "a list of images; got 'cat.jpg' alone"),
        (lambda: network.predict([tmp_path / "no.jpg"]), "can't be read"),
        (lambda: network.predict([], top_k=0), "top_k must be at least 1"),
        (lambda: network.predict([], batch_size=0), "batch_size must be at least 1"),
    ):
        with pytest.raises(resnet.UserError, match=message) as caught:
            call()
        assert caught.type is resnet.UserError
    with pytest.raises(TypeError, match="no setting 'colour'"):
        resnet.build(run.model, colour="red")
    variable = other.model.variables[0]
    variable.assign(tf.fill(variable.shape, np.nan))
    with pytest.raises(resnet.UserError, match="predicts NaN or infinity"):
        other.predict([folder / "cat.jpg"])
    other.config = network.config
    with pytest.raises(resnet.UserError, match="outputs must be finite"):
        other.evaluate(records)


def test_every_network_has_settings_to_be_built_with(monkeypatch):
    built = []
    monkeypatch.setattr("resnet.optim.train_state.build_model", built.append)
    monkeypatch.setattr("resnet.api.Network", lambda *arguments, **options: arguments)
    for name in resnet.network_names():
        resnet.build(name)
    assert [config.model for config in built] == list(resnet.network_names())
    assert {config.image_size for config in built} == {28, 32, 224}
