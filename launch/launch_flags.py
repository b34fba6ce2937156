"""Flags that several programs of this folder have."""

from collections.abc import Collection

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("num_nodes", None, "The number of nodes of the job.")
flags.DEFINE_integer(
    "ranks_per_node",
    None,
    "The number of ranks on each node; of workers in an asynchronous training.",
)
flags.DEFINE_integer(
    "num_servers", None, "The number of parameter servers.", short_name="s"
)
flags.DEFINE_string(
    "hosts",
    None,
    "A file of host names, one per line.",
    short_name="H",
)


def keep_only(names: Collection[str]) -> None:
    """Removes the flags of this module that a program doesn't use.

    Args:
        names: The names of the flags that stay.
    """
    own = {flag.name: flag for flag in FLAGS.flags_by_module_dict()[__name__]}
    for name, flag in own.items():
        if name not in names:
            delattr(FLAGS, name)
            if flag.short_name:
                delattr(FLAGS, flag.short_name)
