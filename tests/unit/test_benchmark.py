"""The benchmark of speed: its figures, its comparisons, and the program itself."""

import re

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from eval import benchmark
from eval.benchmarking import jobs, step_profile
from eval.benchmarking.settings import Settings, check_batch_size
from resnet.base import cli
from resnet.base.errors import UserError
from resnet.hardware import physical_cores
from tests.in_process import assert_refused, run


def add_events(space, thread, *events):
    """Adds a thread with events: name, start and end in milliseconds, texts."""
    if not space.planes:
        space.planes.add(name="/host:CPU")
    plane = space.planes[0]
    line = plane.lines.add(name=thread, timestamp_ns=1_000_000)
    for name, start, end, *texts in events:
        number = len(plane.event_metadata) + 1
        plane.event_metadata[number].name = name
        event = line.events.add(
            metadata_id=number,
            offset_ps=int(start * 1e9),
            duration_ps=int((end - start) * 1e9),
        )
        for key, value in texts:
            key_number = len(plane.stat_metadata) + 1
            plane.stat_metadata[key_number].name = key
            plane.stat_metadata[key_number + 1].name = value
            event.stats.add(metadata_id=key_number, ref_value=key_number + 1)


def test_a_profile_counts_every_moment_once():
    space = xplane_pb2.XSpace()
    gradient = (("name", "g"), ("kernel_type", "HorovodAllreduce"))
    add_events(
        space,
        "tf_Compute/1",
        ("ExecutorState::Process", 0, 10),
        ("call:StatefulPartitionedCall", 1, 5),
        ("model/conv:_MklNativeConv2D", 2, 4),  # Inside the call.
        ("model/cast:Cast", 5, 6),
        ("ExecutorState::ProcessAsync::Start", 6, 6.1, *gradient),
        ("model/conv_1:ResnetConv2D", 7, 8),
        ("MemoryAllocation", 8, 9),
    )
    add_events(space, "tf_Compute/2", ("model/add:AddV2", 5.5, 7))
    add_events(
        space, "python", ("ExecutorState::ProcessAsync::Done", 9, 9.5, *gradient)
    )
    add_events(space, "tf_data_private_threadpool/3", ("x:DecodeJpeg", 0, 20))
    profile = step_profile.summarize(space, 12.0)
    assert profile.as_dict() == {
        "input pipeline, overlapped with the step": 20.0,
        "forward convolution": 3.0,
        "other": 2.0,  # The call without what ran inside it.
        "elementwise": 1.5,
        "casts": 1.0,
        "gradient exchange": 1.0,  # From 6 to 9, without 6 to 8, when ops ran.
        "idle": 4.0,  # 12 without 1 to 9.
        "step": 12.0,
    }
    assert profile.num_ops["forward convolution"] == 2
    assert re.search(
        r"^forward convolution +3\.0 +25\.0% +2  _MklNativeConv2D 2\.0, ResnetConv2D 1",
        profile.table(),
        re.M,
    )


def test_layouts_use_all_cores_or_leave_one_free():
    assert benchmark.layouts(1, 7) == [(1, 1)]
    assert benchmark.layouts(2, 8) == [(1, 2), (2, 1)]
    assert benchmark.layouts(2, 7) == [(1, 2)]
    whole = [(1, 4), (2, 2), (4, 1)]
    assert benchmark.layouts(4, 12) == [*whole, (3, 1)]
    assert benchmark.layouts(4, 8) == [*whole, (1, 3)]


def test_a_sweep_keeps_the_global_batch_and_names_the_fastest(capsys, monkeypatch):
    runs = []

    def run_benchmark(arguments, num_ranks):
        runs.append((num_ranks, arguments))
        rate = {1: 10.0, 2: 30.0, 3: 20.0, 6: 25.0}[num_ranks]
        return {"images_per_second": rate, "min": 9, "max": 31, "peak_memory_mb": 5}

    monkeypatch.setattr(physical_cores, "usable", lambda: [(n,) for n in range(6)])
    monkeypatch.setattr(jobs, "run_benchmark", run_benchmark)
    results = benchmark.sweep(Settings(batch_size=12))["layouts"]
    assert [num_ranks for num_ranks, _ in runs] == [1, 2, 3, 6, 1]
    for (num_ranks, arguments), num_threads in zip(runs, (6, 3, 2, 1, 5), strict=True):
        assert f"--batch_size={12 // num_ranks}" in arguments
        assert f"--num_intra_threads={num_threads}" in arguments
    assert len(results) == 5
    output = capsys.readouterr().out
    assert "fastest: 2 x 3\n" in output
    assert "    mpirun -np 2 " in output
    assert "resnet/resnet_main.py --model=resnet50 " in output
    assert "--train_batch_size=12 --num_intra_threads=3" in output


def test_pairs_are_divided_pair_by_pair(capsys):
    ours, theirs = iter([10.0, 12.0, 8.0]), iter([5.0, 4.0, 8.0])
    pairs = benchmark.compare_in_pairs(lambda: next(ours), lambda: next(theirs), 3)
    assert pairs == {
        "ratio": 2.0,
        "min": 1.0,
        "max": 3.0,
        "ours": [10.0, 12.0, 8.0],
        "theirs": [5.0, 4.0, 8.0],
    }
    output = capsys.readouterr().out
    assert "ours / theirs: median 2.000 (1.000 to 3.000, n=3)" in output


def test_the_rates_of_the_processes_of_a_peer_are_summed_and_one_that_fails_is_named():
    rate = jobs.run_peer(
        """echo '{"images_per_second": {"median": 1.5}}' & echo '{not json'
        echo '{"loss": 9}'; echo '{"images_per_second": 2}' & wait"""
    )
    assert rate == 3.5
    with pytest.raises(UserError, match="printed no line of JSON"):
        jobs.run_peer("echo a word")
    with pytest.raises(UserError, match="failed with exit code 3: why"):
        jobs.run_peer("echo why >&2; exit 3")


def test_settings_are_flags_again():
    settings = Settings(model="resnet34", infer=True, image_size=64, data_dir="x y")
    line = cli.parse(["program", *settings.arguments()], "", benchmark.FLAGS)
    assert line.of(Settings) == settings


@pytest.mark.parametrize(
    ("settings", "num_classes", "expected"),
    [
        (Settings(model="resnet9"), 10, (5e-4, "pad_crop_flip_cutout", 32)),
        (Settings(model="resnet20"), 10, (5e-5, "random_resized_crop_2018_02", 32)),
    ],
)
def test_the_timed_phase_is_that_of_a_recipe_for_the_network_and_the_size(
    settings, num_classes, expected
):
    phase = settings.phase
    assert (phase.weight_decay, phase.augmentation, phase.image_size) == expected
    assert (settings.num_random_classes, settings.side) == (num_classes, expected[2])


def test_a_global_batch_is_at_most_the_data_set():
    check_batch_size(4, 2, 8)
    with pytest.raises(UserError, match="got 10 images per step, 8 examples"):
        check_batch_size(5, 2, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps=0",), "--steps must be in [1, 1e+06]; got 0"),
        (("--vs=x", "--sweep_ranks"), "exclude each other"),
        (("--pairs=2",), "need --vs"),
        (("--data_dir=/",), "/ is not a record set"),
    ],
)
def test_a_wrong_flag_is_one_sentence(arguments, message):
    assert_refused(run(benchmark, *arguments), message)
