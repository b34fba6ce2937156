"""What must run before TensorFlow is imported, or without it."""

import subprocess
import sys

from tests.import_graph import everything_imported_by, is_below, top
from tests.sources import ROOT, SOURCES

# Whole folders, and some modules of others.
FOLDERS = {
    *("resnet.base", "resnet.config", "resnet.hardware", "resnet.report"),
    *("resnet.watchdog", "launch", "data_prep.images", "data_prep.records"),
}
WITHOUT_TENSORFLOW = {name for name in SOURCES if is_below(name, FOLDERS)} | {
    *("resnet.checkpoint.step_dirs", "resnet.checkpoint.integrity"),
    *("resnet.checkpoint.retention", "resnet.data.example_order"),
    *("resnet.evaluation.prediction_file", "resnet.exchange.plan"),
    *("resnet.runtime.versions", "resnet.runtime.run_lock"),
    "resnet.runtime.preemption",
}
# They import it inside functions.
LATE = {
    "resnet.checkpoint.weight_formats.files",
    "resnet.checkpoint.weight_formats.torchvision",
    "resnet.checkpoint.weight_formats.tpu",
    "resnet.export.contents",
    "resnet.export.end_of_training",
    "resnet.export.formats",
    "resnet.resnet_main",
    "resnet.training.parameter_servers.job",
}
TENSORFLOW = {"tensorflow", "keras", "horovod", "tensorflow_datasets"}


def test_pure_modules_are_there_and_import_no_tensorflow():
    assert set(SOURCES) >= WITHOUT_TENSORFLOW
    for name in WITHOUT_TENSORFLOW:
        assert not set(map(top, everything_imported_by(name))) & TENSORFLOW, name


def test_importing_the_pure_modules_loads_no_tensorflow():
    names = sorted(WITHOUT_TENSORFLOW | LATE)
    code = f"import sys, importlib\nfor name in {names}:"
    code += "\n    importlib.import_module(name)"
    code += f"\nassert not {TENSORFLOW} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
