import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from resnet.base.errors import UserError
from resnet.watchdog import scratch_dir
from tests.processes import completed

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
    return completed(
        [sys.executable, "-c", USE + end],
        env={**os.environ, "TMPDIR": tmpdir, "PYTHONPATH": str(REPOSITORY)},
        cwd=cwd,
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


def test_no_folder_at_all_is_a_sentence(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(UserError, match=r"temporary files is needed: .* Set TMPDIR to"):
        scratch_dir.path.__wrapped__()
