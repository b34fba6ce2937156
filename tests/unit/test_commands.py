"""The command lines that messages suggest: quoted, and taken by the programs."""

import importlib
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_prep import digits, imagenet_to_tfrecords
from data_prep.records import indexing, layouts, manifest
from data_prep.records.manifest import fitting_recipe
from eval import benchmark
from eval.benchmarking.settings import Settings
from launch import estimate, place_shards
from resnet import resnet_main
from resnet.base import cli, commands, program
from resnet.base.errors import UserError
from resnet.config import recipe_file
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.report import page
from resnet.report.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse"),
    *("ship", "truck"),
)


def parsed(command: str) -> tuple[str, cli.CommandLine]:
    """Returns the file of a command's program, and the flags that it accepts."""
    words = shlex.split(command)
    if words[0] == "mpirun":
        assert words[1] == "-np"
        assert int(words[2]) > 1
        words = words[3:]
    assert words[0] in ("python", sys.executable)
    file = Path(words[1]).resolve().relative_to(ROOT)
    module = importlib.import_module(".".join(file.with_suffix("").parts))
    takes_arguments = file.name in ("predict.py", "report.py")
    line = cli.parse(["", *words[2:]], "", module.FLAGS, takes_arguments)
    return str(file), line


def contents(class_names, num_train: int, num_validation: int = 0):
    counts = {"train": num_train, "validation": num_validation}
    splits = {
        name: manifest.Split(
            name, (manifest.Shard(f"{name}/x", count, 9 * count, "", 1.0),), (), "", ""
        )
        for name, count in counts.items()
        if count
    }
    return manifest.Manifest(
        class_names=tuple(class_names), first_label=1, splits=splits, source={}
    )


@pytest.mark.parametrize(
    ("class_names", "num_images", "recipe"),
    [
        (map(str, range(10)), 1437, "digits"),
        (map(str, range(10)), 60, "own"),
        (CIFAR10, 50_000, "cifar10"),
        (CIFAR10, 13_000, "own"),
        (("cat", "dog"), 10, "own"),
        (map(str, range(1000)), 100_000, "own"),
        (map(str, range(1000)), 1_281_167, ""),
    ],
)
def test_the_recipe_fits_the_classes_and_the_number_of_images(
    class_names, num_images, recipe
):
    assert fitting_recipe(contents(class_names, num_images)) == recipe


def test_after_a_conversion_the_training_comes_or_the_evaluation(tmp_path, monkeypatch):
    root = tmp_path / "it's mine"
    next_command = imagenet_to_tfrecords._next_command
    file, line = parsed(next_command(contents(("a", "b"), 10, 3), root))
    assert (file, line.given["recipe"]) == ("resnet/resnet_main.py", "--recipe=own")
    assert line.values["data_dir"] == str(root)
    assert line.values["model_dir"] == f"{root}-model"
    monkeypatch.chdir(tmp_path)
    _, line = parsed(next_command(contents(("a", "b"), 10, 3), Path()))
    assert line.values["model_dir"] == f"{tmp_path}-model"
    file, line = parsed(next_command(contents(map(str, range(1000)), 10**6), root))
    assert "recipe" not in line.given
    file, line = parsed(next_command(contents(("a", "b"), 0, 3), root))
    assert file == "eval/resnet_eval.py"
    assert line.values["data_dir"] == str(root)


def test_after_the_digits_their_conversion_comes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(digits, "write_digits", lambda _: (3, 1))
    folder = tmp_path / "some digits"
    digits.main(["program", f"--digits_dir={folder}"])
    _, line = parsed(capsys.readouterr().out.partition("next:")[2])
    assert line.values["raw_data_dir"] == str(folder)
    assert line.values["local_scratch_dir"] == f"{folder}-records"


def test_a_folder_without_records_is_answered_with_the_conversion(tmp_path):
    folder = tmp_path / "no records"
    folder.mkdir()
    for call in (
        lambda: manifest.load(str(folder), "train"),
        lambda: place_shards.main(["", f"--data_dir={folder}", "--num_nodes=1"]),
    ):
        with pytest.raises(UserError) as caught:
            call()
        (command,) = re.findall(r"first, by (.*)\.$", str(caught.value))
        file, _ = parsed(command)
        assert file == "data_prep/imagenet_to_tfrecords.py"
    (folder / "image.jpg").touch()
    with pytest.raises(UserError) as caught:
        manifest.load(str(folder), "train")
    _, line = parsed(re.findall(r"first, by (.*)\.$", str(caught.value))[0])
    assert line.values["local_scratch_dir"] == f"{folder}-records"
    (folder / "other.tfrecord").touch()
    with pytest.raises(UserError) as caught:
        indexing.make_if_missing(str(folder))
    _, line = parsed(re.findall(r"images: (.*)\.$", str(caught.value))[0])
    assert line.values["raw_data_dir"] == "RAW"
    assert layouts.Layout.conversion[0] in line.given.values()


def test_measured_layouts_speeds_and_predictions_come_with_commands(tmp_path):
    for infer in (False, True):
        settings = Settings(batch_size=12, infer=infer, data_dir="my records")
        _, line = parsed(benchmark.command(settings, 2, 3))
        assert line.values["num_intra_threads"] == 3
        assert line.values["data_dir"] == "my records"
        assert line.values["model_dir"] == ("MODEL" if infer else "my records-model")
        name = "eval_batch_size" if infer else "global_batch_size"
        assert line.values[name] == 12
    with pytest.raises(UserError) as caught:
        estimate.main(["program"])
    parsed(re.findall(r"got neither\. (.*) on one node", str(caught.value))[0])
    parsed(record_sets._ADVICE.partition(" prints")[0])
    run = RunFolder(tmp_path / "a run", "a run", {"data_dir": "/my records"})
    _, line = parsed(page._evaluation(run))
    assert line.values["model_dir"] == str(run.path)
    assert line.values["store_predictions"]


def of_source(source, splits=()):
    splits = dict.fromkeys(splits)
    return manifest.Manifest(
        class_names=("a",), first_label=0, splits=splits, source=source
    )


@pytest.mark.parametrize("has_validation", [True, False])
def test_after_a_training_its_evaluation_report_and_predictions_come(
    monkeypatch, tmp_path, has_validation
):
    said = []
    monkeypatch.setattr(resnet_main, "export", lambda *_: None)
    monkeypatch.setattr(
        resnet_main.logging, "info", lambda text, *values: said.append(text % values)
    )
    names = [manifest.TRAIN, *[manifest.VALIDATION] * has_validation]
    image = tmp_path / "validation" / "my cats" / "1.JPEG"
    for path in (tmp_path / "train" / "dogs" / "1.JPEG", image):
        path.parent.mkdir(parents=True)
        path.touch()
    contents = of_source({"raw_data_dir": str(tmp_path)}, names)
    config = SimpleNamespace(model_dir="/my runs/1", data_dir="/my records")
    resnet_main.finish(contents, config, Communicator(ProcessInfo()))
    *evaluation, report, predict = (parsed(text.partition(": ")[2]) for text in said)
    assert [file for file, _ in evaluation] == ["eval/resnet_eval.py"] * has_validation
    for _, line in evaluation:
        assert line.values["data_dir"] == "/my records"
        assert line.values["store_predictions"]
    assert report[0] == "eval/report.py"
    assert report[1].values["model_dir"] == "/my runs/1"
    assert predict[0] == "eval/predict.py"
    assert [Path(path).resolve() for path in predict[1].arguments] == [image.resolve()]
    assert predict[1].values["model_dir"] == "/my runs/1"


def test_without_the_source_of_a_data_set_its_image_is_a_placeholder(tmp_path):
    for source in ({}, {"raw_data_dir": str(tmp_path / "gone")}, {"raw_data_dir": 1}):
        assert of_source(source).example_image() == "IMAGE"


def test_programs_of_a_clone_are_files_and_others_installed_commands(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(ROOT)
    assert commands.command("resnet-report", "a b").endswith(" eval/report.py 'a b'")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(commands.command("resnet-report"))
    assert words[-1] == f"{ROOT}/eval/report.py"
    monkeypatch.setattr(commands, "IS_INSTALLED", True)
    folder = Path(sys.executable).parent
    for path, expected in (("/nowhere", f"{folder}/resnet-eval"), (folder, "resnet")):
        monkeypatch.setenv("PATH", str(path))
        monkeypatch.setattr(
            commands.shutil, "which", lambda name, path=path: f"{path}/{name}"
        )
        command = commands.command("resnet-eval", "--x=1", num_ranks=2)
        words = " ".join(shlex.split(command))
        assert words.startswith(f"mpirun -np 2 {expected}")
        assert words.endswith("resnet-eval --x=1")


def test_the_names_are_those_that_are_installed():
    installed = dict(
        re.findall(
            r'"([\w-]+) = resnet\.base\.program:(\w+)"', (ROOT / "setup.py").read_text()
        )
    )
    for name, file in commands.FILES.items():
        (module,) = getattr(program, installed[name]).args
        assert f"{module.replace('.', '/')}.py" == file
        assert (ROOT / file).is_file()


def test_a_recipe_that_there_is_not_is_answered_with_the_list_of_all():
    with pytest.raises(UserError) as caught:
        recipe_file.get("imagenette_bset")
    _, line = parsed(re.findall(r"names that (.*) lists", str(caught.value))[0])
    assert line.values["list_recipes"]


def test_suggested_recipes_exist():
    for class_names in (map(str, range(10)), CIFAR10, ("a",)):
        recipe = fitting_recipe(contents(class_names, 100_000))
        assert recipe == "own" or recipe_file.get(recipe)
