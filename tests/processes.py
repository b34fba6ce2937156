"""Processes of tests: programs that they write, and what a program prints."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def completed(words: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, however that is, and keeps what it prints."""
    captured = {"capture_output": True, "text": True, "check": False, "timeout": 900}
    return subprocess.run(words, **{**captured, **options})


def write_program(path: Path, text: str) -> Path:
    """Writes a file that can be executed."""
    path.write_text(text)
    path.chmod(0o755)
    return path
