"""The programs in processes of their own: by path, by module and by console script."""

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from tests import console_scripts, in_process
from tests.in_process import assert_refused
from tests.processes import completed

ROOT = Path(__file__).resolve().parents[2]
MODULES = console_scripts.modules()


def run_all(
    commands: Iterable[Sequence[str]], cwd: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Returns the ends of commands, of which two run at a time."""

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return completed(command, cwd=cwd)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, commands))


def flags_in(text: str) -> list[str]:
    """Returns the names of the flags that the output of --help lists."""
    return sorted(re.findall(r"^  (?:-\w,)?--(?:\[no\])?(\w+):", text, re.M))


def test_help_by_path_lists_the_flags_that_the_tests_of_a_program_see(tmp_path):
    assert len(MODULES) > 7
    paths = [f"{ROOT / module.replace('.', '/')}.py" for module in MODULES.values()]
    jobs = run_all(([sys.executable, path, "--help"] for path in paths), tmp_path)
    for name, job in zip(MODULES.values(), jobs, strict=True):
        program = import_module(name)
        assert (job.returncode, job.stderr) == (0, "")
        assert job.stdout.startswith(program.__doc__)
        assert flags_in(job.stdout)
        here = in_process.run(program, "--help")
        assert flags_in(job.stdout) == flags_in(here.stdout)
        # Although its docstring isn't that of the main module, which is pytest's.
        assert here.stdout.startswith(program.__doc__)


def test_console_scripts_are_installed_and_refuse_unknown_flags(tmp_path):
    scripts = [str(Path(sys.executable).with_name(script)) for script in MODULES]
    for job in run_all(([script, "--no_such_flag"] for script in scripts), tmp_path):
        assert_refused(job, "no_such_flag")


def test_help_may_be_read_in_part(tmp_path):
    program = ROOT / "resnet/resnet_main.py"
    command = f"'{sys.executable}' '{program}' --help | true; exit $PIPESTATUS"
    (job,) = run_all([["bash", "-c", command]], tmp_path)
    assert (job.returncode, job.stderr) == (0, "")


def test_help_lists_only_flags_that_a_program_has():
    path = str(ROOT / "eval/lab/input_rate.py")
    (job,) = run_all([[sys.executable, path, "--help"]], ROOT)
    assert flags_in(job.stdout) == ["data_dir", "image_size", "num_images", "rounds"]
    done = in_process.run(import_module("launch.supervise"), "--help")
    assert flags_in(done.stdout) == ["max_restarts", "model_dir", "restart_seconds"]


def test_importing_the_programs_loads_nothing_slow():
    modules = (*MODULES.values(), "eval.lab.compression_study")
    code = f"import sys, {', '.join(modules)}"
    code += "; sys.exit(bool({'tensorflow', 'matplotlib'} & set(sys.modules)))"
    (job,) = run_all([[sys.executable, "-c", code]], ROOT)
    assert (job.returncode, job.stderr) == (0, "")
