import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
USE = """
import os, sys, tempfile
from resnet.watchdog import scratch_dir
scratch_dir.make()
os.chdir("/")  # A relative $TMPDIR is one of the start.
with tempfile.NamedTemporaryFile(delete=False) as file:
    print(file.name, os.environ["TMPDIR"], sep="\\n", flush=True)
"""


def use(tmpdir: str, cwd: Path, end: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", USE + end],
        env={**os.environ, "TMPDIR": tmpdir, "PYTHONPATH": str(REPOSITORY)},
        cwd=cwd,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("end", "is_relative"),
    [("", False), ("sys.exit(75)", True), ("raise IndexError", False)],
)
def test_temporary_files_go_with_the_process(tmp_path, end, is_relative):
    parent = tmp_path / "temporary"
    parent.mkdir()
    job = use("temporary" if is_relative else str(parent), tmp_path, end)
    file, folder = map(Path, job.stdout.splitlines())
    assert file.parent == folder
    assert folder.parent == parent
    assert os.listdir(parent) == []


def test_no_folder_at_all_is_a_sentence(tmp_path):
    refused = """
import tempfile
from resnet.base.errors import UserError
tempfile._candidate_tempdir_list = lambda: ["/proc"]
from resnet.watchdog import scratch_dir
try:
    scratch_dir.make()
except UserError as error:
    print(error)
"""
    job = subprocess.run(
        [sys.executable, "-c", refused], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert job.stdout.startswith("a folder for temporary files is needed: ")
    assert job.stdout.endswith("Set TMPDIR to one.\n")
