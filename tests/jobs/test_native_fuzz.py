"""`make fuzz`: compiled ops on hostile inputs, under sanitizers."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_no_input_misuses_memory_or_gives_other_values(tmp_path):
    words = ["make", "-f", "tests/native/Makefile", f"BUILD={tmp_path}", "CASES=5000"]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5000 cases, no failure" in done.stdout
