"""A user's mistake, and packages that PYTHONPATH hides."""

import errno
import os
import shlex
import signal
import sys

import pytest

from resnet.base import errors, interpreter
from tests.in_process import assert_refused
from tests.processes import completed
from tests.sources import ROOT


def fail(error: BaseException) -> None:
    with errors.naming_failures("reading x"):
        raise error


def test_a_failure_of_the_system_is_a_sentence():
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a/b")
    with pytest.raises(
        errors.UserError, match=r"^reading x failed: No such file or directory: 'a/b'$"
    ):
        fail(missing)
    with pytest.raises(errors.UserError, match=r"^reading x failed: broken$"):
        fail(OSError("broken"))
    with pytest.raises(
        errors.UserError, match=r"^reading x failed for lack of memory$"
    ):
        fail(MemoryError())


def test_other_errors_stay_as_they_are():
    for error in (errors.UserError("why"), KeyError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert caught.value is error


def test_an_interrupted_program_says_so_and_ends_by_the_signal():
    code = "from resnet.base import program; raise KeyboardInterrupt"
    done = completed([sys.executable, "-c", code], cwd=ROOT)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "error: interrupted\n")


@pytest.mark.parametrize(
    ("program", "package", "content"),
    [
        ("resnet/resnet_main.py", "numpy", "import nothing_such"),
        ("data_prep/digits.py", "absl", ""),
        ("eval/predict.py", "numpy", ""),
    ],
)
def test_a_broken_package_is_named_in_one_sentence(tmp_path, program, package, content):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(content)
    done = completed(
        [sys.executable, str(ROOT / program), "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert_refused(done, f"PYTHONPATH names {tmp_path}, which hides packages")


def test_the_check_of_an_environment_names_pythonpath(tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").touch()
    done = completed(
        ["bash", str(ROOT / "install/check.sh"), sys.prefix, "ops"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"since PYTHONPATH names {tmp_path}" in done.stderr


def test_a_python_without_the_packages_is_told_of_the_environment(tmp_path):
    """As that of a shell in which nothing is activated, in any folder."""
    done = completed(
        [sys.executable, "-S", str(ROOT / "launch/plan.py"), "--probe"], cwd=tmp_path
    )
    assert_refused(done, "no package absl")
    assert f"source {shlex.quote(str(ROOT / '.venv/bin/activate'))}" in done.stderr


def test_a_moved_environment_is_to_be_made_again(monkeypatch, tmp_path):
    """Its `activate` names the folder where it was, so would lead nowhere."""
    for name in ("install/install.sh", ".venv/choices"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("FOLDER=/old/.venv\nVERSION=3.12.1\n")
    monkeypatch.setattr(interpreter, "_ROOT", tmp_path)
    sentence = interpreter.describe_missing("absl")
    assert "was made as /old/.venv, and has been moved" in sentence
    assert f"make venv in {tmp_path}, then source" in sentence


def test_a_package_that_only_the_environment_has_is_named(monkeypatch, tmp_path):
    error = ModuleNotFoundError("No module named 'numpy.linalg'", name="numpy.linalg")
    assert errors.describe_failed_import(error) == ""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "no package numpy," in errors.describe_failed_import(error)
    monkeypatch.setattr(interpreter, "_ROOT", tmp_path)  # Installed from a wheel.
    assert errors.describe_failed_import(error) == ""


def test_other_failures_are_not_blamed_on_pythonpath(monkeypatch, tmp_path):
    for folder, error in (
        (ROOT, IndexError("a bug, in a function")),
        (tmp_path, ImportError("no such module", path=__file__)),
    ):
        monkeypatch.setenv("PYTHONPATH", str(folder))
        with pytest.raises(type(error)) as caught:
            raise error
        assert errors.describe_failed_import(caught.value) == ""
