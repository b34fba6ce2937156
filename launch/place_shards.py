r"""Assigns record files to nodes, for --shard_by=file.

python launch/place_shards.py --data_dir=RECORDS --num_nodes=4
python launch/place_shards.py --data_dir=RECORDS --num_nodes=4 --node=0 \
    | rsync --files-from=- RECORDS node0:/local/RECORDS

Prints a table of the nodes, or with --node only the file names of that node.
"""

import pathlib
import sys

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from data_prep.records import manifest
from data_prep.records.manifest import Manifest, RecordSet
from launch import launch_flags
from resnet import shared_flags
from resnet.base import errors
from resnet.base.errors import UserError

FLAGS = flags.FLAGS
flags.DEFINE_integer(
    "node", None, "Print only the file names of this node, numbered from 0."
)


def main() -> None:
    """Prints the table, or the file names of one node."""
    record_set, num_nodes = read_flags()
    placement = place(record_set.manifest, num_nodes)
    _check_balance(record_set.manifest, placement)
    if FLAGS.node is not None:
        text = "\n".join(files_of_node(record_set.manifest, placement, FLAGS.node))
    else:
        ranks_per_node = FLAGS.ranks_per_node or 1
        text = table(record_set.manifest, placement, ranks_per_node)
    errors.print_to_pipe(text)


def read_flags() -> tuple[RecordSet, int]:
    """Returns the data set and the number of nodes.

    Raises:
        UserError: If a flag is missing or out of its range, the data set has no
            manifest, a split has fewer record files than there are nodes, or --node is
            given and not all files are in --data_dir.
    """
    if not FLAGS.data_dir:
        raise UserError("--data_dir is required and must name a converted data set.")
    if FLAGS.num_nodes is None or FLAGS.num_nodes < 1:
        raise UserError(
            f"--num_nodes is required and must be at least 1; got {FLAGS.num_nodes}."
        )
    if FLAGS.ranks_per_node is not None and FLAGS.ranks_per_node < 1:
        raise UserError(
            f"--ranks_per_node must be at least 1; got {FLAGS.ranks_per_node}."
        )
    if FLAGS.node is not None and not 0 <= FLAGS.node < FLAGS.num_nodes:
        raise UserError(
            f"--node must be from 0 to {FLAGS.num_nodes - 1}; got {FLAGS.node}."
        )
    record_set = manifest.find(FLAGS.data_dir)
    if record_set is None:
        raise UserError(
            f"{FLAGS.data_dir} must contain a {manifest.FILE_NAME}; found none."
            " Convert the images first (data_prep/imagenet_to_tfrecords.py)."
        )
    places = record_set.index_dir, record_set.records_dir
    if FLAGS.node is not None and any(not _is_same(place) for place in places):
        raise UserError(
            "--node needs a --data_dir that contains both the records and their index;"
            f" those of {FLAGS.data_dir} are in {record_set.records_dir} and"
            f" {record_set.index_dir}. Name the folder of the records, and copy the"
            " files of the index there first if they are elsewhere."
        )
    for split in record_set.manifest.splits.values():
        if len(split.shards) < FLAGS.num_nodes:
            raise UserError(
                f"split {split.name} has {len(split.shards)} record files, fewer than"
                f" the {FLAGS.num_nodes} nodes. Convert it with"
                f" --{split.name}_shards={FLAGS.num_nodes} or a multiple of that."
            )
    return record_set, FLAGS.num_nodes


def _check_balance(contents: Manifest, placement: dict[str, list[range]]) -> None:
    """Raises UserError if training refuses the numbers of examples on the nodes."""
    if (split := contents.splits.get("train")) is None:
        return
    of_nodes = [
        sum(split.shards[shard].num_records for shard in shards)
        for shards in placement["train"]
    ]
    if not manifest.is_balanced(of_nodes, split.num_examples / len(of_nodes)):
        raise UserError(
            "--shard_by=file needs about as many training examples on each node; the"
            f" {len(split.shards)} record files give the {len(of_nodes)} nodes from"
            f" {min(of_nodes)} to {max(of_nodes)}. Convert with a --train_shards that"
            " is a multiple of the number of nodes."
        )


def _is_same(folder: pathlib.Path) -> bool:
    return folder.resolve() == pathlib.Path(FLAGS.data_dir).resolve()


def place(contents: Manifest, num_nodes: int) -> dict[str, list[range]]:
    """Returns the indices of the shards (record files) of each node, by split.

    Each node has a contiguous range of shards, each shard is on one node, and the
    numbers of shards differ by at most one.

    Args:
        contents: Manifest of the whole set.
        num_nodes: Number of nodes, at least 1.
    """
    return {
        name: [
            range(
                node * len(split.shards) // num_nodes,
                (node + 1) * len(split.shards) // num_nodes,
            )
            for node in range(num_nodes)
        ]
        for name, split in contents.splits.items()
    }


def files_of_node(
    contents: Manifest, placement: dict[str, list[range]], node: int
) -> list[str]:
    """Returns the files that a node needs, relative to the folder of the set."""
    names = [manifest.FILE_NAME]
    for name, split in contents.splits.items():
        names.append(split.offsets_path)
        names += [split.shards[shard].path for shard in placement[name][node]]
    return names


def table(
    contents: Manifest, placement: dict[str, list[range]], ranks_per_node: int
) -> str:
    """Returns a table of each node's ranks, files, examples and bytes."""
    lines = []
    for name, split in contents.splits.items():
        lines.append(
            f"{name}: {split.num_examples:,} examples in {len(split.shards):,} files"
        )
        for node, indices in enumerate(placement[name]):
            shards = [split.shards[index] for index in indices]
            first = node * ranks_per_node
            num_records = sum(shard.num_records for shard in shards)
            lines.append(
                f"  node {node}, ranks {first} to {first + ranks_per_node - 1}:"
                f" {len(shards)} files ({indices[0]} to {indices[-1]}),"
                f" {num_records / ranks_per_node:,.0f} examples per rank,"
                f" {sum(shard.num_bytes for shard in shards) / 1e9:,.2f} GB"
            )
    return "\n".join(lines)


def run() -> None:
    """Runs the program."""
    shared_flags.keep_only(("data_dir",))
    launch_flags.keep_only(("num_nodes", "ranks_per_node"))
    errors.run(main)


if __name__ == "__main__":
    run()
