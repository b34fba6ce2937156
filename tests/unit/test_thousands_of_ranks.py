"""Plans, files, orders and roles of 512 to 4,096 ranks, which don't run here."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.records.manifest import Manifest, Shard, Split
from launch import job_plan, place_shards, topology
from launch.job_plan import JobFlags, Request
from resnet.config import rules
from resnet.config.command_line import JobSettings
from resnet.config.recipes import RECIPES, imagenet
from resnet.data import record_sets
from resnet.data.input_pipeline import examples_of_micro_batch
from resnet.data.record_files import RecordFiles, shard_of_rank
from resnet.training.parameter_servers import roles

RANKS = st.integers(512, 4096)
ASYNC = RECIPES["imagenet_inception_async"]
IMAGENET = imagenet.TPU_90EP_24K.num_train_examples


def split_of(num_files: int, num_examples: int) -> Split:
    """A split whose files are even, and aren't there."""
    bounds = [number * num_examples // num_files for number in range(num_files + 1)]
    shards = tuple(
        Shard(f"train/{number}", end - begin, 1, "", 1.0)
        for number, (begin, end) in enumerate(itertools.pairwise(bounds))
    )
    return Split("train", shards, (num_examples,), "t.npy", "")


def records_of(split: Split) -> RecordFiles:
    """The examples of a split; nothing is read."""
    numbers = np.arange(split.num_examples, dtype=np.int64)
    sizes = [shard.num_records for shard in split.shards]
    return RecordFiles(
        paths=tuple(shard.path for shard in split.shards),
        file_of_example=np.repeat(np.arange(len(sizes)), sizes),
        offset_of_example=numbers,
        number_of_example=numbers,
        first_label=1,
        class_names=("a",),
    )


@settings(max_examples=25)
@given(num_nodes=st.integers(512, 1300), workers=st.integers(1, 3))
def test_each_node_of_an_asynchronous_job_has_one_rank_that_hardly_computes(
    num_nodes, workers
):
    plan = job_plan.make(
        topology.stated(num_nodes, 2, 24),
        Request(
            flags=JobFlags(job="parameter_server", ranks_per_node=workers),
            threads=JobSettings(),
            recipe=ASYNC,
            recipe_flag=ASYNC.name,
            overrides={"global_batch_size": num_nodes * workers},
            num_train_examples=IMAGENET,
        ),
    )
    num_ranks, num_servers = plan.shape.num_processes, num_nodes - 1
    assert rules.num_workers(num_ranks, num_servers) == num_nodes * workers
    assert plan.run.num_parts == num_nodes * workers
    assert plan.shape.goes_round  # Rank r is on node r % num_nodes.
    of_ranks = [roles.of_rank(rank, num_servers) for rank in range(num_ranks)]
    assert len(set(of_ranks)) == num_ranks
    workers_of = Counter(
        rank % num_nodes
        for rank, role in enumerate(of_ranks)
        if role.job == roles.WORKER
    )
    assert workers_of == dict.fromkeys(range(num_nodes), workers)
    assert num_ranks == num_nodes * (workers + 1)


@settings(max_examples=20)
@given(num_ranks=RANKS, data=st.data(), step=st.integers(0, 10**5))
def test_a_rank_of_thousands_reads_its_part_of_the_batch_of_one(num_ranks, data, step):
    rank = data.draw(st.integers(0, num_ranks - 1))
    local = data.draw(st.integers(1, 4))
    order = 7, 0, 1, num_ranks * local, IMAGENET
    whole = examples_of_micro_batch(step, *order)
    part = examples_of_micro_batch(step, 7, rank, num_ranks, local, IMAGENET)
    np.testing.assert_array_equal(part, whole[rank * local : (rank + 1) * local])


@settings(max_examples=10)
@given(num_nodes=st.integers(256, 1024), per_node=st.sampled_from([2, 4]))
def test_the_files_placed_on_the_nodes_are_accepted_and_each_example_has_a_rank(
    num_nodes, per_node
):
    split = split_of(2 * num_nodes, 20_000)
    contents = Manifest(
        class_names=("a",), first_label=1, splits={"train": split}, source={}
    )
    placed = place_shards.place(contents, num_nodes)
    shards_of_ranks = [
        tuple(shards) for shards in placed["train"] for _ in range(per_node)
    ]
    assert len(shards_of_ranks) == num_nodes * per_node
    record_sets.check_shards_of_nodes(split, shards_of_ranks)
    records = records_of(split)
    nodes = (0, num_nodes // 2, num_nodes - 1)
    found: list[int] = []
    for node in nodes:
        ranks = range(node * per_node, (node + 1) * per_node)
        shards = [shard_of_rank(records, shards_of_ranks, rank) for rank in ranks]
        assert [shard.rank for shard in shards] == list(range(per_node))
        for shard in shards:
            numbers = shard.records.number_of_example
            found += numbers[shard.first_example : shard.end_example].tolist()
    on_nodes = [index for node in nodes for index in placed["train"][node]]
    expected = np.isin(records.file_of_example, on_nodes)
    assert found == np.flatnonzero(expected).tolist()
