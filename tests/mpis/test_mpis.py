"""One environment trains under five MPIs, by the commands that the planner prints."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from resnet.checkpoint import step_dirs, tensors
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests import main_run
from tests.mpis.conftest import MPICH, ROOT, Mpi

pytestmark = [pytest.mark.mpis, pytest.mark.multiprocess]

MAIN = "resnet/resnet_main.py"
SECONDS = 600.0
CHOOSE = """import os
from resnet.distributed import mpi_library
mpi_library.prepare(os.environ)
print(os.environ["MPI4PY_LIBMPI"])
"""
STEPS = 100
# Of two ranks, whose sums don't depend on an order.
RUNS = {
    "float32": (f"--train_steps={STEPS}", "--checkpoint_every=10steps"),
    "bf16": ("--precision=bf16",),
    "compressed": ("--compress=layerwise", "--method=topk", "--ratio=0.1"),
}


@pytest.fixture(scope="session")
def expected(records, tmp_path_factory):
    """Returns the weights of MPICH's two ranks after a run, by its name."""
    weights = {}

    def of_run(name: str) -> dict[str, np.ndarray]:
        if name not in weights:
            folder = tmp_path_factory.mktemp(name)
            MPICH.run(2, MAIN, *flags_of(name, records, folder))
            weights[name] = tensors.load_from(folder).tensors
        return weights[name]

    return of_run


def flags_of(name: str, records: Path, model_dir: Path) -> tuple[str, ...]:
    flags = (*main_run.TRAINING_FLAGS, *RUNS[name])
    return (*flags, f"--data_dir={records}", f"--model_dir={model_dir}")


def assert_equal_bits(model_dir: Path, expected: dict[str, np.ndarray]) -> None:
    found = tensors.load_from(model_dir).tensors
    assert list(found) == list(expected)
    different = [
        name for name in found if not np.array_equal(found[name], expected[name])
    ]
    assert different == []


def loaded_libraries(model_dir: Path) -> dict[str, set[str]]:
    """Returns the files of MPI that the ranks of a run have loaded, by process."""
    libraries = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(model_dir).encode() in (process / "cmdline").read_bytes():
                maps = (process / "maps").read_text()
                paths = re.findall(r" (/.*/(?:libmpi|MPI\.|mpi_lib)\S*)$", maps, re.M)
                libraries[process.name] = set(paths)
        except OSError:
            continue
    return {process: paths for process, paths in libraries.items() if len(paths) > 2}


def assert_one_interface(mpi: Mpi, paths: set[str]) -> None:
    """Checks that a rank has the library of this MPI, and what is built for it."""
    interface = "openmpi" if mpi.dialect == "openmpi" else "mpich"
    built = sorted(
        Path(path).name for path in paths if "/horovod/" in path or "/mpi4py/" in path
    )
    built = [name for name in built if name != "libmpi.so.12"]  # The empty one.
    assert [name.split(".")[:2] for name in built] == [
        ["MPI", interface],
        [f"mpi_lib_{interface}", "so"],
    ]
    (library,) = (path for path in paths if not re.search("/(horovod|mpi4py)/", path))
    number = {"mpich": 12, "openmpi": 40}[interface]
    assert f".so.{number}" in library
    assert Path(library).is_relative_to(mpi.libraries.resolve())


def test_a_stopped_run_of_two_ranks_resumes_with_the_weights_of_mpich(
    mpi, records, tmp_path, expected
):
    flags = flags_of("float32", records, tmp_path)
    words = mpi.words(2, MAIN, *flags)
    with (tmp_path / "output").open("w") as output:
        job = subprocess.Popen(
            words, env=mpi.environment, cwd=ROOT, stdout=output, stderr=output
        )
        deadline = time.monotonic() + SECONDS
        while not step_dirs.saved_steps(tmp_path) and job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        libraries = loaded_libraries(tmp_path)
        if mpi.dialect == "openmpi":  # Its mpirun would kill the ranks at once.
            os.kill(int(max(libraries)), signal.SIGTERM)
        else:
            job.terminate()
        code = job.wait(SECONDS)
    printed = (tmp_path / "output").read_text()
    assert code == REQUEUE_EXIT_CODE, printed
    assert 3 <= tensors.load_from(tmp_path).step < STEPS
    assert len(libraries) == 2
    for paths in libraries.values():
        assert_one_interface(mpi, paths)
    mpi.run(2, MAIN, *flags)
    assert_equal_bits(tmp_path, expected("float32"))


@pytest.mark.parametrize("name", ["bf16", "compressed"])
def test_two_ranks_have_the_weights_of_mpich(mpi, records, tmp_path, expected, name):
    """Sums of bfloat16 values are float32, whatever types an MPI has."""
    mpi.run(2, MAIN, *flags_of(name, records, tmp_path))
    assert_equal_bits(tmp_path, expected(name))


def test_three_ranks_evaluate_what_they_have_trained(mpi, records, tmp_path):
    flags = (f"--model_dir={tmp_path}", f"--data_dir={records}")
    mpi.run(3, MAIN, *main_run.FLAGS, *flags, "--eval_every=6steps")
    result = tmp_path / "result.json"
    flags = (*flags, "--eval_batch_size=9", f"--json_file={result}")
    mpi.run(3, "eval/resnet_eval.py", *flags)
    last = main_run.evaluation_lines(tmp_path)[-1]
    main_run.assert_same(json.loads(result.read_text()), last, count=360)


def test_a_server_and_two_workers_train(mpi, records, tmp_path):
    flags = (f"--model_dir={tmp_path}", f"--data_dir={records}", "--sync_mode=async")
    printed = mpi.run(3, MAIN, *main_run.TRAINING_FLAGS, *flags)
    assert re.search(r"Updates by their staleness: 0: \d+", printed), printed


def test_srun_starts_two_ranks_with_the_weights_of_mpich(
    mpi, slurm, records, tmp_path, expected
):
    for path in mpi.run_in_slurm(slurm, "-c", CHOOSE).split():
        assert Path(path).is_relative_to(mpi.libraries)
    mpi.run_in_slurm(slurm, ROOT / MAIN, *flags_of("bf16", records, tmp_path))
    assert_equal_bits(tmp_path, expected("bf16"))
