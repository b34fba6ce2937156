"""The self-test in processes of its own: on each core, and at the start of a job."""

import re

import pytest

from resnet.watchdog import history
from tests import main_run
from tests.unit import each_instruction_set

pytestmark = pytest.mark.multiprocess


@pytest.mark.parametrize("name", each_instruction_set.usable_instruction_sets())
def test_all_cores_compute_what_the_table_has(run_ranks, name):
    """By the kernels of each instruction set of this machine."""
    done = run_ranks(1, "eval/selftest.py", environment={"RESNET_MAX_CPU_ISA": name})
    assert done.returncode == 0, done.stderr
    assert f"the {name} kernels" in done.stdout.replace("with the", "the")
    in_table = done.stdout.split()[-1]
    computed = re.findall(r"\(processor \d+\): (\w{8}) in", done.stdout)
    if re.fullmatch(r"[0-9a-f]{8}", in_table):  # Not of another compiler.
        assert set(computed) == {in_table}


def test_ranks_test_their_cores_before_they_train(run_ranks, records, tmp_path):
    folders = (f"--data_dir={records}", f"--model_dir={tmp_path}")
    flags = (*main_run.TRAINING_FLAGS, "--stop_after_steps=1", "--self_test")
    job = run_ranks(2, "resnet/resnet_main.py", *flags, *folders)
    assert job.returncode == 0, job.stderr
    assert re.search(
        r"^self-test: \d+ cores? agree, with \w+ kernels", job.stderr, re.M
    )
    assert history.read_failure(tmp_path) is None
