"""The archive of `make bundle`, and a folder of `make wheels`, without any network."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import smallest
from tests.processes import completed

pytestmark = pytest.mark.offline

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINING = (
    *("--recipe=digits", smallest.FLAG, "--image_size=32", "--train_batch_size=6"),
    *("--train_steps=2", "--warmup_steps=1"),
)
# An interpreter, an environment and a clone that are elsewhere are not to be found.
HIDDEN = [Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, Path.home() / ".cache"]
INSIDE = """set -euo pipefail
ip link set lo up
for folder in {hidden}; do [ ! -d "$folder" ] || mount -t tmpfs none "$folder"; done
"$@"
"""


def run_offline(
    folder: Path, script: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs lines of bash in a folder, where only the loopback network is there."""
    hidden = [str(path) for path in HIDDEN if path != Path("/usr")]
    text = INSIDE.format(hidden=" ".join(f"'{path}'" for path in hidden))
    namespaces = ["unshare", "--map-root-user", "--net", "--mount"]
    words = [*namespaces, "bash", "-c", text, "-", "bash", "-euo", "pipefail", "-c"]
    return completed(
        [*words, script],
        cwd=folder,
        env={"PATH": os.defpath, "HOME": str(folder), **variables},
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """Returns an archive of this environment, and prints its size and the seconds."""
    ending = ".tar.zst" if shutil.which("zstd") else ".tar.gz"  # The faster one.
    path = tmp_path_factory.mktemp("bundle") / f"resnet-cpu{ending}"
    started = time.monotonic()
    words = [sys.executable, REPOSITORY / "install/bundle.py", path]
    done = completed(words)
    assert done.returncode == 0, done.stderr
    print(f"{done.stdout.strip()}, {time.monotonic() - started:.1f} s")
    return path


def test_nothing_is_reached_and_nothing_of_this_clone_is_there(tmp_path):
    script = f"ls {REPOSITORY} {sys.prefix}; getent hosts pypi.org; cat /proc/net/route"
    done = run_offline(tmp_path, f"{script} || true")
    assert "launch" not in done.stdout
    assert "pypi" not in done.stdout
    assert len(done.stdout.splitlines()[-1].split()) <= 11  # At most the heading.


def test_an_archive_trains_at_another_path(archive, tmp_path, records):
    place = tmp_path / "another place"
    place.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", place], check=True)
    shutil.copytree(records, tmp_path / "records")
    script = f"""
    source resnet-cpu/.venv/bin/activate
    resnet-cpu/install/check.sh resnet-cpu/.venv
    folders="--data_dir={tmp_path}/records --model_dir={tmp_path}/model"
    mpirun -np 2 python resnet-cpu/resnet/resnet_main.py {" ".join(TRAINING)} $folders
    resnet-eval --eval_batch_size=4 $folders
    cd / && resnet-report --model_dir={tmp_path}/model
    """
    done = run_offline(place, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[check] two ranks: the all-reduce works" in done.stdout
    assert "[check] compiled ops: yes" in done.stdout
    assert (tmp_path / "model/metrics.jsonl").exists()
    assert "on 11 images" in done.stdout or "11 images" in done.stderr


def test_a_folder_of_packages_sets_up_a_clone(tmp_path):
    """WHEELS names a folder that `make wheels` has filled before."""
    wheels = Path(os.environ.get("WHEELS", tmp_path / "wheels"))
    if not wheels.exists():
        script = REPOSITORY / "install/wheels.sh"
        subprocess.run([script, sys.prefix, wheels], check=True)
    clone = tmp_path / "a clone"
    ignored = shutil.ignore_patterns(".venv*", ".git", "demo-run", "wheels", "*.so*")
    shutil.copytree(REPOSITORY, clone, ignore=ignored, symlinks=True)
    # Its Python stays: it is that of the machine, and not of an environment.
    HIDDEN.remove(Path(sys.base_prefix))
    try:
        python = Path(sys.base_prefix, "bin/python3")
        words = f'make venv WHEELS="{wheels}" PYTHON={python}'
        done = run_offline(clone, words)
    finally:
        HIDDEN.append(Path(sys.base_prefix))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[check] two ranks: the all-reduce works" in done.stdout
    assert "compiling" not in done.stdout  # Horovod and the ops are in the folder.
    assert "[venv] ready" in done.stdout
