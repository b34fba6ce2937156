"""A cache of decoded images in memory, so that a small data set is decoded once."""

from collections.abc import Callable

import tensorflow as tf

Load = Callable[[], tuple[tf.Tensor, tf.Tensor]]


class DecodedCache:
    """The images of one split with their labels, as many as the cache has room for.

    The others are decoded each time that they are needed. The result doesn't depend on
    the contents of the cache.
    """

    def __init__(self, megabytes: int) -> None:
        """Makes an empty cache.

        Args:
            megabytes: The size of this rank's cache, in units of 10**6 bytes.
        """
        self._max_bytes = megabytes * 10**6
        self._num_bytes = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._images = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.string, default_value=""
        )
        self._labels = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, default_value=-1
        )

    def get(self, example: tf.Tensor, load: Load) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the image (`[height, width, 3]` uint8) and label of an example.

        Functions of a dataset call it, in any number of threads.

        Args:
            example: The index of the example, int64 scalar.
            load: A function that decodes the image and returns it with its label, for
                an example that the cache doesn't hold.
        """
        cached = self._images.lookup(example)

        def load_and_insert() -> tuple[tf.Tensor, tf.Tensor]:
            image, label = load()
            serialized = tf.io.serialize_tensor(image)
            num_bytes = tf.cast(tf.strings.length(serialized), tf.int64)

            def insert() -> tf.Tensor:
                # The label first: a thread that finds the image finds the label too.
                with tf.control_dependencies([self._labels.insert(example, label)]):
                    inserted = self._images.insert(example, serialized)
                with tf.control_dependencies([inserted]):
                    return tf.identity(num_bytes)

            def release() -> tf.Tensor:
                return tf.identity(self._num_bytes.assign_sub(num_bytes))

            # The bytes are reserved before the comparison: concurrent threads count
            # each other's reservations and never exceed the size together.
            reserved = self._num_bytes.assign_add(num_bytes)
            done = tf.cond(reserved <= self._max_bytes, insert, release)
            with tf.control_dependencies([done]):
                return tf.identity(image), tf.identity(label)

        def parse() -> tuple[tf.Tensor, tf.Tensor]:
            image = tf.io.parse_tensor(cached, tf.uint8)
            return tf.ensure_shape(image, (None, None, 3)), self._labels.lookup(example)

        return tf.cond(tf.strings.length(cached) > 0, parse, load_and_insert)
