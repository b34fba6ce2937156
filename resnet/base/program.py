"""How a program starts and ends: `main(argv) -> exit code`, and errors as sentences.

Programs import this first: a Python without the project's packages is refused, and from
then on, what can't be printed is dropped (`output`), and an import that fails is one
sentence where its cause is known. The installed commands are here too.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resnet.base import interpreter

interpreter.require("absl")  # All programs need it. Before what needs a newer Python.

# isort: split

from resnet.base import output
from resnet.base.errors import EXIT_CODE, UserError, report_failed_imports

output.secure()
report_failed_imports()  # Before the imports of the program, which may fail.

Main = Callable[[Sequence[str]], int]

# A wheel holds the folders `eval` and `launch` in `resnet_cpu`, since packages of such
# common names would replace others in an environment. A clone has them beside `resnet`.
_ROOT = Path(__file__).resolve().parents[2]


def run(main: Main) -> int:
    """Returns the exit code of a program, 2 with one sentence for a UserError."""
    try:
        from resnet.base import cli

        cli.start_log()
        return main(sys.argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CODE


def call(module: str, argv: Sequence[str], **options: Any) -> int:
    """Calls the main of a program, which finds its package as if run by its path."""
    of_wheel = _ROOT / "resnet_cpu"
    sys.path.insert(0, str(of_wheel if of_wheel.is_dir() else _ROOT))
    code: int = importlib.import_module(module).main(argv, **options)
    return code


def _run(module: str) -> int:
    return run(functools.partial(call, module))


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
verify = functools.partial(_run, "eval.verify")
self_test = functools.partial(_run, "eval.selftest")
supervise = functools.partial(_run, "launch.supervise")
