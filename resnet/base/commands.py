"""The installed commands, and how one program calls another.

A wheel holds the folders `eval` and `launch` in `resnet_cpu`, since packages of such
common names would replace others in an environment. A clone has them beside `resnet`.
"""

import functools
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resnet.base import program

_ROOT = Path(__file__).resolve().parents[2]


def call(module: str, argv: Sequence[str], **options: Any) -> int:
    """Calls the main function of a program, and returns its exit code.

    The program finds its package as if it were run by its path.
    """
    of_wheel = _ROOT / "resnet_cpu"
    sys.path.insert(0, str(of_wheel if of_wheel.is_dir() else _ROOT))
    code: int = importlib.import_module(module).main(argv, **options)
    return code


def _run(module: str) -> int:
    return program.run(functools.partial(call, module))


train = functools.partial(_run, "resnet.resnet_main")
convert = functools.partial(_run, "data_prep.imagenet_to_tfrecords")
write_digits = functools.partial(_run, "data_prep.digits")
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
