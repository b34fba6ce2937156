"""What must run before TensorFlow is imported, or without it."""

import subprocess
import sys

from tests.import_graph import everything_imported_by, top
from tests.sources import ROOT, SOURCES

WITHOUT_TENSORFLOW = {
    "resnet.hardware.placement",
    "resnet.config.rules",
    "resnet.config.config",
    "resnet.config.phases",
    "resnet.config.recipe",
    "resnet.config.explain",
    "resnet.config.recipe_file",
    "resnet.config.recipes",
    "resnet.report.page",
    "resnet.report.refresh",
    "resnet.watchdog.history",
    "resnet.config.resolve",
    "resnet.config.rounds",
    "resnet.base.settings",
    "resnet.base.json_file",
    "resnet.evaluation.prediction_file",
    "resnet.config.schedules",
    "resnet.data.example_order",
    "resnet.exchange.plan",
    "resnet.checkpoint.step_dirs",
    "resnet.checkpoint.integrity",
    "resnet.checkpoint.retention",
    "resnet.base.intervals",
    "resnet.config.networks",
    "resnet.config.command_line",
    "resnet.watchdog.monitor",
    "resnet.watchdog.proc",
    "resnet.runtime.versions",
    "resnet.runtime.run_lock",
    "resnet.watchdog.stalls",
    "resnet.runtime.preemption",
    "resnet.watchdog.scratch_dir",
}
# They import it inside functions.
LATE = {
    "resnet.checkpoint.weight_formats.files",
    "resnet.checkpoint.weight_formats.torchvision",
    "resnet.checkpoint.weight_formats.tpu",
    "resnet.export.contents",
    "resnet.export.end_of_training",
    "resnet.export.exported_network",
    "resnet.export.formats",
    "resnet.resnet_main",
    "resnet.training.parameter_servers.job",
}
TENSORFLOW = {"tensorflow", "keras", "horovod", "tensorflow_datasets"}


def test_pure_modules_are_there_and_import_no_tensorflow():
    assert set(SOURCES) >= WITHOUT_TENSORFLOW
    assert importers_of_tensorflow(WITHOUT_TENSORFLOW) == []


def test_importing_the_pure_modules_loads_no_tensorflow():
    code = f"import sys, importlib\nfor name in {sorted(WITHOUT_TENSORFLOW | LATE)}:"
    code += "\n    importlib.import_module(name)"
    code += f"\nassert not {TENSORFLOW} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_launch_runs_without_tensorflow():
    assert importers_of_tensorflow({n for n in SOURCES if top(n) == "launch"}) == []


def importers_of_tensorflow(names: set[str]) -> list[str]:
    return sorted(
        name
        for name in names
        if {top(imported) for imported in everything_imported_by(name)} & TENSORFLOW
    )
