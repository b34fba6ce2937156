"""Packages in PYTHONPATH that hide those of the environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resnet.base import import_failures
from tests.in_process import assert_refused

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("program", "package", "content"),
    [
        ("resnet/resnet_main.py", "numpy", "import nothing_such"),
        ("launch/supervise.py", "absl", "import nothing_such"),
        ("data_prep/digits.py", "absl", ""),
    ],
)
def test_a_broken_package_is_named_in_one_sentence(tmp_path, program, package, content):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(content)
    done = subprocess.run(
        [sys.executable, str(ROOT / program), "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert_refused(done, f"PYTHONPATH names {tmp_path}, which hides packages")


def fail() -> None:
    raise IndexError("a bug")


def test_a_bug_in_a_folder_of_pythonpath_is_none_of_an_import(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(IndexError) as caught:
        fail()
    assert import_failures.describe(caught.value) == ""


def test_other_failures_are_not_blamed_on_pythonpath(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ImportError) as caught:
        raise ImportError("no such module", path=__file__)
    assert import_failures.describe(caught.value) == ""
