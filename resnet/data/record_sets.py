"""Opens and checks a data set on all ranks, before TensorFlow is imported."""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from data_prep.records import in_place, indexing, manifest, record_index, verified
from data_prep.records.manifest import RecordSet, Split
from resnet.base import commands
from resnet.base.errors import UserError
from resnet.base.text import first_of
from resnet.config.config import Config
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo

_ADVICE = (
    f"{commands.command('resnet-place-shards')} prints which shards belong on which"
    " node."
)


def open_record_set(
    data_dir: str,
    split_name: str | None,
    process: ProcessInfo,
    communicator: Communicator,
) -> RecordSet:
    """Returns the data set in a folder, which must have this split; None for any.

    A set that another program wrote is indexed first: by rank 0 and, on a node that
    doesn't see rank 0's file system, by one rank of that node. Raises AgreedError on
    all ranks; the folder's name must be valid UTF-8 for TensorFlow.
    """

    def report(number: int, num_files: int) -> None:
        communicator.report_status(
            f"indexing record file {number:,} of {num_files:,}", is_timed=False
        )

    for makes_index in (communicator.rank == 0, process.local_rank == 0):
        # Scanning a large set takes longer than any one activity may.
        communicator.report_status(
            "opening the records", is_timed=False, waits_for_others=not makes_index
        )
        with communicator.collective_errors():
            if makes_index:
                indexing.make_if_missing(data_dir, logging.info, report)
    communicator.report_status("starting", is_timed=False)
    with communicator.collective_errors():
        record_set = manifest.load(data_dir, split_name)
        folder = os.fsencode(record_set.records_dir)
        try:
            folder.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"--data_dir must be a name in UTF-8; got {folder!r}. Rename the"
                " folder."
            ) from error
        return record_set


def digests(record_set: RecordSet) -> dict[str, Any]:
    """Returns the digests of the splits of a data set, by the fields of `Config`."""
    splits = record_set.manifest.splits.items()
    return {f"{name}_records_sha256": split.records_sha256 for name, split in splits}


def check_num_classes(record_set_dir: str, split: Split) -> None:
    """Raises UserError if all examples to train on are of one class.

    Any network would predict it, and reach a top-1 of 100 %. Of several labels, one at
    least is to tell images apart.
    """
    if not any(0 < count < split.num_examples for count in split.label_counts):
        raise UserError(
            "training needs examples of at least two classes; all"
            f" {split.num_examples:,} training examples in {record_set_dir} are of one."
            " Convert images with a folder for each class: RAW/train/<class>/."
        )


def check_fits(record_set: RecordSet, config: Config, whose: str) -> None:
    """Raises UserError if a run, which `whose` names, can't be evaluated on a set.

    The set may lack classes, or have them in another order.
    """
    contents, where = record_set.manifest, record_set.records_dir
    names, known = contents.class_names, config.class_names
    if unknown := sorted(set(names) - set(known)):
        raise UserError(
            f"the data set must have only classes of {whose}, which has {len(known):,}"
            f" ({known[0]}, ...); {len(unknown):,} of the {len(names):,} in {where} are"
            f" others: {first_of(unknown)}. Name a --data_dir with the same classes."
        )
    if contents.multi_label != config.multi_label:
        several = "several labels an image", "one class an image"
        expected, got = several if config.multi_label else several[::-1]
        raise UserError(
            f"the data set must have {expected}, as {whose}; that in {where} has {got}."
        )
    window, of_run = contents.depth_window, config.depth_window
    if window and of_run and window != of_run:
        raise UserError(
            f"the images in {where} must have the depth_window of {whose}, {of_run};"
            f" theirs is {window}. Convert them with that --depth_window."
        )


def check_split(
    record_set: RecordSet, split: Split, shard_by: str, communicator: Communicator
) -> list[tuple[int, ...]]:
    """Checks the record files and returns the indices of those that each rank reads.

    By "example" each rank reads all record files ("shards"), by "file" those on its
    node. Raises AgreedError on all ranks.
    """
    shards = tuple(
        index
        for index, shard in enumerate(split.shards)
        if shard_by == "example" or os.path.exists(record_set.records_dir / shard.path)
    )
    with communicator.collective_errors():
        manifest.check_files(record_set, split.name, shards)
        if record_set.manifest.images_dir:  # By example, ranks divide the files.
            index = record_index.read_index(record_set, split)
            own = index[np.isin(index["shard"], shards)]
            if shard_by == "example":
                own = own[communicator.rank :: communicator.num_ranks]
            in_place.check_files(record_set.records_dir, split, own)
    if shard_by == "example":  # One object for all ranks: they may be thousands.
        return [shards] * communicator.num_ranks
    shards_of_ranks = communicator.allgather(shards)
    with communicator.collective_errors():
        check_shards_of_nodes(split, shards_of_ranks)
    return shards_of_ranks


def verify_changed(
    record_set: RecordSet,
    shards_of_ranks: Mapping[str, Sequence[tuple[int, ...]]],
    communicator: Communicator,
    accepts_corrupt: bool = True,
) -> None:
    """Verifies the record files of a rank that have changed since they were verified.

    Ranks that see the same files divide them. `shards_of_ranks` are those of
    `check_split` by split. Raises AgreedError if one isn't the file of the manifest, or
    has a corrupt record that isn't accepted.
    """
    splits, known = record_set.manifest.splits, record_set.verified
    shards = [
        splits[name].shards[index]
        for name, of_ranks in shards_of_ranks.items()
        for index in of_ranks[communicator.rank]
    ]
    known.update({} if known else verified.read(record_set))
    with communicator.collective_errors():
        states = verified.states_of(record_set, shards)
    changed = [shard for shard in shards if known.get(shard.path) != states[shard.path]]
    if not communicator.any_rank(changed):
        return
    communicator.report_status("verifying the record files", is_timed=False)
    own = hashlib.sha256(repr([states[shard.path] for shard in changed]).encode())
    views = communicator.allgather(own.digest())
    sharing = [rank for rank, view in enumerate(views) if view == own.digest()]
    part = changed[sharing.index(communicator.rank) :: len(sharing)]
    with communicator.collective_errors():
        verified.verify(record_set, part, accepts_corrupt)
    known.update(states)
    if communicator.rank == sharing[0]:
        verified.write(record_set, known)


def check_shards_of_nodes(
    split: Split, shards_of_ranks: Sequence[tuple[int, ...]]
) -> None:
    """Raises UserError unless each shard is on one node and the nodes are balanced.

    Ranks that see the same shards count as one node. The numbers of training examples
    per rank may differ by as much as `is_balanced` says.
    """
    ranks_of_nodes = Counter(shards_of_ranks)
    holders: dict[int, list[tuple[int, ...]]] = {}
    for node in sorted(ranks_of_nodes):
        for index in node:
            holders.setdefault(index, []).append(node)
    for index, shard in enumerate(split.shards):
        nodes = holders.get(index, [])
        if len(nodes) != 1:
            ranks = [str(shards_of_ranks.index(node)) for node in nodes[:2]]
            where = f"the nodes of ranks {' and '.join(ranks)}" if nodes else "no node"
            raise UserError(
                f"--shard_by=file needs each shard on one node; {shard.path} is on"
                f" {where}. {_ADVICE}"
            )
    examples_per_rank = [
        sum(split.shards[index].num_records for index in node) / num_ranks
        for node, num_ranks in ranks_of_nodes.items()
    ]
    mean = split.num_examples / len(shards_of_ranks)
    if split.name == "train" and not manifest.is_balanced(examples_per_rank, mean):
        raise UserError(
            "--shard_by=file needs about as many training examples for each rank; they"
            f" have from {min(examples_per_rank):.0f} to"
            f" {max(examples_per_rank):.0f}. Give the nodes equal numbers of"
            " shards, or convert with a --train_shards that is a multiple of the number"
            f" of nodes. {_ADVICE}"
        )
