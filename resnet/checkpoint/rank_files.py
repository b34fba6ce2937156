"""The files of a checkpoint that hold each rank's own state.

Rank 3 of 8 writes `rank-00003-of-00008.index` and `.data-00000-of-00001`, in
TensorFlow's format. A rank holds the state of one rank in memory at a time: together
the files are `num_ranks` times as large as the model.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from resnet.checkpoint import integrity, rank_names


class RankFiles:
    """The ranks' own state in one checkpoint, read one rank at a time.

    Attributes:
        folder: Folder of the checkpoint.
        num_ranks: Number of ranks that saved it; 0 if they had no state of their own.
    """

    def __init__(self, folder: Path) -> None:
        """Reads `checkpoint.json`, and no tensors.

        Raises:
            UserError: If the file can't be read.
        """
        self.folder = folder
        names = integrity.read_contents(folder)["files"]
        self.num_ranks = max(map(rank_names.num_ranks, names), default=0)

    def read(self, rank: int) -> dict[str, np.ndarray]:
        """Returns the tensors that one rank saved, by name.

        Raises:
            UserError: If they can't be read now.
        """
        try:
            path = str(self.folder / rank_names.prefix(rank, self.num_ranks))
            reader = tf.train.load_checkpoint(path)
            names = reader.get_variable_to_shape_map()
            return {name: reader.get_tensor(name) for name in names}
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise integrity.unreadable_now(self.folder, str(error)) from error
