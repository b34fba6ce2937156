"""Which records each rank really read at each step, for those who doubt.

`FOLDER/from-step-00000000-rank-00001-of-00002.jsonl` has a line for each step:
`{"step": 0, "examples": [...], "replaced": [...]}`. The examples are numbered as the
manifest lists them, shard by shard; `replaced` are those among them that stood in for a
damaged record. `step` is the number of the global batch, from 0. A run that goes on
from a checkpoint begins new files, so that what a step read is in those of the latest
start that is not after it.
"""

import json
from pathlib import Path

import numpy as np

from data_prep.errors import UserError
from resnet.append_file import AppendFile


class RecordLog:
    """Writes one rank's file, or nothing."""

    def __init__(self, folder: str, start_step: int, rank: int, num_ranks: int) -> None:
        """Begins the file of a start, in a folder that is made; none if it has no name.

        Raises:
            UserError: If it can't be written.
        """
        self._file: AppendFile | None = None
        if not folder:
            return
        name = f"from-step-{start_step:08d}-rank-{rank:05d}-of-{num_ranks:05d}.jsonl"
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_bytes(b"")
            self._file = AppendFile(Path(folder, name))
        except OSError as error:
            raise UserError(
                f"--record_log must be a folder that can be written to: {error}"
            ) from error

    def write(self, step: int, examples: np.ndarray, mask: np.ndarray) -> None:
        """Writes the line of a step.

        Args:
            step: Number of the global batch.
            examples: int64 `[local_batch]`, numbers in the whole split.
            mask: bool `[local_batch]`.
        """
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
