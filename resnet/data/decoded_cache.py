"""Decoded pictures kept in memory, so that a small set is decoded once."""

from collections.abc import Callable

import tensorflow as tf

Load = Callable[[], tuple[tf.Tensor, tf.Tensor]]


class DecodedCache:
    """Pictures of one split with their labels, as many as there is room for.

    Those that are not in it are decoded whenever they are wanted. What the network sees
    does not depend on what is in it.
    """

    def __init__(self, megabytes: int) -> None:
        """Makes an empty cache.

        Args:
            megabytes: Room for pictures, in units of 10**6 bytes; each rank's own.
        """
        self._num_bytes_most = megabytes * 10**6
        self._num_bytes = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._pictures = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.string, default_value=""
        )
        self._labels = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, default_value=-1
        )

    def get(self, example: tf.Tensor, load: Load) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the picture (`[height, width, 3]` uint8) and label of an example.

        To be called in a function of a dataset, by any number of threads.

        Args:
            example: int64 scalar.
            load: Returns both when they are not in the cache.
        """
        kept = self._pictures.lookup(example)

        def load_and_keep() -> tuple[tf.Tensor, tf.Tensor]:
            picture, label = load()
            serialized = tf.io.serialize_tensor(picture)
            num_bytes = tf.cast(tf.strings.length(serialized), tf.int64)

            def keep() -> tf.Tensor:
                # The label first: who finds the picture finds the label too.
                with tf.control_dependencies([self._labels.insert(example, label)]):
                    inserted = self._pictures.insert(example, serialized)
                with tf.control_dependencies([inserted]):
                    return tf.identity(num_bytes)

            def give_back() -> tf.Tensor:
                return tf.identity(self._num_bytes.assign_sub(num_bytes))

            # Room is taken first and then looked at: threads that do so at the same
            # time see each other's, and never take too much together.
            taken = self._num_bytes.assign_add(num_bytes)
            done = tf.cond(taken <= self._num_bytes_most, keep, give_back)
            with tf.control_dependencies([done]):
                return tf.identity(picture), tf.identity(label)

        def take() -> tuple[tf.Tensor, tf.Tensor]:
            picture = tf.io.parse_tensor(kept, tf.uint8)
            return tf.ensure_shape(picture, (None, None, 3)), self._labels.lookup(
                example
            )

        return tf.cond(tf.strings.length(kept) > 0, take, load_and_keep)
