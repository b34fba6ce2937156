"""Command lines that messages suggest, as the user's shell runs them here."""

import os
import shlex
import shutil
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# Whether the programs are installed commands (`program`), not files of a clone.
IS_INSTALLED = (_ROOT / "resnet_cpu").is_dir()
# The files that they are in a clone.
FILES = {
    "imagenet-to-tfrecords": "data_prep/imagenet_to_tfrecords.py",
    "resnet-benchmark": "eval/benchmark.py",
    "resnet-eval": "eval/resnet_eval.py",
    "resnet-export": "eval/export.py",
    "resnet-place-shards": "launch/place_shards.py",
    "resnet-predict": "eval/predict.py",
    "resnet-report": "eval/report.py",
    "resnet-train": "resnet/resnet_main.py",
}
NAMES = {file: name for name, file in FILES.items()}


def command(name: str, *words: str, num_ranks: int = 1) -> str:
    """Returns the command line that runs a program by its installed name, quoted."""
    launcher = ["mpirun", "-np", str(num_ranks)] if num_ranks > 1 else []
    if IS_INSTALLED:
        return shlex.join([*launcher, _found(name), *words])
    path = os.path.relpath(_ROOT / FILES[name])
    if path.startswith(os.pardir):
        path = str(_ROOT / FILES[name])
    return shlex.join([*launcher, _found("python"), path, *words])


def of_run(data_dir: str, model_dir: str, image: str = "IMAGE") -> dict[str, str]:
    """Returns the commands that use the network of a run, by what they do."""
    evaluation = "--store_predictions", f"--data_dir={data_dir or 'RECORDS'}"
    return {
        "Evaluate": command("resnet-eval", *evaluation, f"--model_dir={model_dir}"),
        "Report": command("resnet-report", f"--model_dir={model_dir}"),
        "Predict": command("resnet-predict", f"--model_dir={model_dir}", image),
    }


def _found(name: str) -> str:
    """Returns the name of a program of this environment, or its path if need be."""
    folder = Path(sys.executable).parent
    on_path = shutil.which(name)
    if on_path and Path(on_path).parent.resolve() == folder.resolve():
        return name
    return sys.executable if name == "python" else str(folder / name)
