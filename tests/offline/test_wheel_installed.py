"""The wheel of `make wheel`, in an environment of its own, without a compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import completed

pytestmark = pytest.mark.offline

REPOSITORY = Path(__file__).resolve().parents[2]
COMPILERS = ("gcc", "g++", "cc", "c++", "make", "cmake", "mpicxx", "mpicc")
TRAINING = "--recipe=digits --train_batch_size=32 --train_steps=3 --warmup_steps=1"


def test_a_wheel_trains_on_two_ranks_where_nothing_can_be_compiled(tmp_path):
    """WHEEL names a wheel that `make wheel` has made before."""
    built = os.environ.get("WHEEL")
    if not built:
        script = REPOSITORY / "install/wheel.sh"
        subprocess.run([script, sys.prefix, tmp_path], check=True)
        (built,) = map(str, tmp_path.glob("resnet_cpu-*.whl"))
    assert "-py3-none-manylinux_" in built
    programs = tmp_path / "programs"  # Those of the system, without compilers.
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if not path.name.startswith(COMPILERS):
            (programs / path.name).symlink_to(path)
    environ = {"PATH": str(programs), "HOME": str(tmp_path)}
    environ |= {key: value for key, value in os.environ.items() if key[:4] == "PIP_"}
    assert not shutil.which("c++", path=environ["PATH"])
    script = f"""
    {os.path.realpath(sys.executable)} -m venv environment
    source environment/bin/activate
    pip install -q {built}
    resnet-digits --digits_dir images
    imagenet-to-tfrecords --raw_data_dir images --local_scratch_dir records
    python -c 'from resnet import native; print(native.describe())'
    mpirun -np 2 resnet-train {TRAINING} --data_dir=records --model_dir=model
    """
    done = completed(["bash", "-euc", script], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled ops: yes" in done.stdout
    assert (tmp_path / "model/metrics.jsonl").exists()
