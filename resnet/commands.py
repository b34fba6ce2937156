"""The installed commands whose programs lie in `eval` and `launch`.

A wheel holds these two folders in `resnet_cpu`, since packages of such common names
would replace others in an environment. A clone has them beside `resnet`.
"""

import functools
import importlib
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def _run(module: str) -> None:
    """Runs a program, which finds its package as if it were run by its path."""
    of_wheel = _ROOT / "resnet_cpu"
    sys.path.insert(0, str(of_wheel if of_wheel.is_dir() else _ROOT))
    importlib.import_module(module).run()


evaluate = functools.partial(_run, "eval.resnet_eval")
export = functools.partial(_run, "eval.export")
predict = functools.partial(_run, "eval.predict")
report = functools.partial(_run, "eval.report")
draw_learning_curve = functools.partial(_run, "eval.learning_curve")
benchmark = functools.partial(_run, "eval.benchmark")
estimate = functools.partial(_run, "launch.estimate")
parameter_server_job = functools.partial(_run, "launch.parameter_server_job")
plan = functools.partial(_run, "launch.plan")
place_shards = functools.partial(_run, "launch.place_shards")
supervise = functools.partial(_run, "launch.supervise")
