r"""Assigns record files to nodes, for --shard_by=file.

python launch/place_shards.py --data_dir=RECORDS --num_nodes=4
python launch/place_shards.py --data_dir=RECORDS --num_nodes=4 --node=0 \
    | rsync --files-from=- RECORDS node0:/local/RECORDS

Prints a table of the nodes, or with --node only the file names of that node.
"""

import itertools
import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from data_prep.records import manifest
from data_prep.records.manifest import Manifest
from resnet.base import cli, commands
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.base.settings import COUNT, setting
from resnet.base.text import counted
from resnet.config.config import Config

Placement = dict[str, list[range]]  # Shards of each node, by split.


@dataclass(frozen=True)
class PlacementFlags:
    """The nodes."""

    num_nodes: int | None = setting(
        None, "The number of nodes of the job.", bounds=COUNT, unset="required"
    )
    ranks_per_node: int = setting(1, "The number of ranks on each node.", bounds=COUNT)
    node: int | None = setting(
        None,
        "Print only the file names of this node, numbered from 0.",
        unset="all nodes",
    )


FLAGS: cli.Groups = (
    cli.Flags(Config, names=("data_dir",), common=False),
    PlacementFlags,
)


def main(argv: Sequence[str]) -> int:
    """Prints the table, or the file names of one node."""
    line = cli.parse(argv, __doc__, FLAGS)
    nodes, data_dir = line.of(PlacementFlags), line.values["data_dir"]
    if not data_dir:
        raise UserError("--data_dir is required and must name a converted data set.")
    num_nodes, node = nodes.num_nodes, nodes.node
    if num_nodes is None:
        raise UserError("--num_nodes is required and must be at least 1; got None.")
    if node is not None and not 0 <= node < num_nodes:
        raise UserError(f"--node must be from 0 to {num_nodes - 1}; got {node}.")
    record_set = manifest.find(data_dir)
    if record_set is None:
        raise UserError(
            f"{data_dir} must contain a {manifest.FILE_NAME}; found none."
            " Convert the images first, by"
            f" {commands.command('imagenet-to-tfrecords')}."
        )
    own = {pathlib.Path(data_dir).resolve()}
    folders = record_set.records_dir, record_set.index_dir
    if node is not None and {folder.resolve() for folder in folders} != own:
        raise UserError(
            "--node needs a --data_dir that contains both the records and their index;"
            f" those of {data_dir} are in {folders[0]} and {folders[1]}. Copy the"
            " index beside the records."
        )
    contents = record_set.manifest
    placement = place(contents, num_nodes)
    _check_balance(contents, placement)
    if node is None:
        print_result(table(contents, placement, nodes.ranks_per_node))
    else:
        print_result("\n".join(files_of_node(contents, placement, node)))
    return 0


def place(contents: Manifest, num_nodes: int) -> Placement:
    """Returns the shards (record files) of each node, in even ranges, by split."""
    placement = {}
    for name, split in contents.splits.items():
        count = len(split.shards)
        if count < num_nodes:
            raise UserError(
                f"split {name} has {count} record files, fewer than the {num_nodes}"
                f" nodes. Convert with --{name}_shards={num_nodes} or a multiple."
            )
        bounds = [node * count // num_nodes for node in range(num_nodes + 1)]
        placement[name] = [range(*pair) for pair in itertools.pairwise(bounds)]
    return placement


def _check_balance(contents: Manifest, placement: Placement) -> None:
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
            f" {min(of_nodes)} to {max(of_nodes)}. Use a multiple as --train_shards."
        )


def files_of_node(contents: Manifest, placement: Placement, node: int) -> list[str]:
    """Returns the files that a node needs, relative to the folder of the set."""
    names = [manifest.FILE_NAME]
    for name, split in contents.splits.items():
        names.append(split.index_path)
        names += [split.shards[shard].path for shard in placement[name][node]]
    return names


def table(contents: Manifest, placement: Placement, ranks_per_node: int) -> str:
    """Returns a table of each node's ranks, files, examples and bytes."""
    lines = []
    for name, split in contents.splits.items():
        lines.append(
            f"{name}: {split.num_examples:,} examples in"
            f" {counted(len(split.shards), 'file')}"
        )
        for node, indices in enumerate(placement[name]):
            shards = [split.shards[index] for index in indices]
            first = node * ranks_per_node
            num_records = sum(shard.num_records for shard in shards)
            lines.append(
                f"  node {node}, ranks {first} to {first + ranks_per_node - 1}:"
                f" {counted(len(shards), 'file')} ({indices[0]} to {indices[-1]}),"
                f" {num_records / ranks_per_node:,.0f} examples per rank,"
                f" {sum(shard.num_bytes for shard in shards) / 1e9:,.2f} GB"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(program.run(main))
