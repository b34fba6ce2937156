"""A log of the examples that each rank read at each step.

`FOLDER/from-step-00000000-rank-00001-of-00002.jsonl` has a line for each step, from 0:
`{"step": 0, "examples": [...], "replaced": [...]}`. `examples` are indices in the order
of the manifest; `replaced` those that were read in place of a corrupt record. A run
that resumes writes new files, named by the first step, and removes those of its steps.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from resnet.base.errors import UserError
from resnet.metrics.metrics_log import AppendFile

_NAME = re.compile(r"from-step-(\d{8,})-rank-\d{5,}-of-\d{5,}\.jsonl")


def prepare(folder: str, start_step: int, is_first_start: bool) -> None:
    """Removes the files of steps that will be done again, on behalf of all ranks."""
    if not folder:
        return
    with _writing_to(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        first_steps = {
            path: int(match[1])
            for path in Path(folder).iterdir()
            if (match := _NAME.fullmatch(path.name))
        }
        if is_first_start and any(path.stat().st_size for path in first_steps):
            raise UserError(
                "--record_log must be a folder without the log of another run;"
                f" {folder} has one."
            )
        for path, first_step in first_steps.items():
            if first_step >= start_step:
                path.unlink()


@contextlib.contextmanager
def _writing_to(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--record_log can't be written to; {folder}: {error.strerror}."
        ) from error


class RecordLog:
    """The log file of one rank; without a folder, nothing is written."""

    def __init__(self, folder: str, start_step: int, rank: int, num_ranks: int) -> None:
        """Creates the folder and the file."""
        self._file: AppendFile | None = None
        if not folder:
            return
        name = f"from-step-{start_step:08d}-rank-{rank:05d}-of-{num_ranks:05d}.jsonl"
        with _writing_to(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_bytes(b"")
            self._file = AppendFile(Path(folder, name))

    def write(self, step: int, examples: np.ndarray, mask: np.ndarray) -> None:
        """Writes the line of a step, whose arguments are those of `examples_read`."""
        if self._file is None:
            return
        line = {
            "step": step,
            "examples": examples.tolist(),
            "replaced": examples[~mask].tolist(),
        }
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
