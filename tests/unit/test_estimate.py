"""The program that estimates: its table, its answers, its files, and its errors."""

import json
import math
import sys
from pathlib import Path

import pytest

from launch import estimate
from tests.in_process import Done, assert_refused, run

PUBLISHED = ("--rate=79.1", "--ranks_per_node=2")
SLOW = (*PUBLISHED, "--bandwidth_gbit=1", "--latency_us=50", "--overlap=0")
OTHER = ("--rate=1",)


def estimated(*arguments: str) -> Done:
    done = run(estimate, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def values(*arguments: str) -> dict:
    return json.loads(estimated(*arguments, "--json").stdout.splitlines()[-1])


def joined(text: str) -> str:
    return " ".join(text.split())


def rows(text: str) -> list[list[str]]:
    """Returns the cells of the table of nodes."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("nodes"))
    return [line.split() for line in lines[first : lines.index("", first)]]


def result(**changed) -> dict:
    """Returns what a benchmark of one node prints as JSON, as far as it is read."""
    return {
        "images_per_second": 20.0,
        "min": 19.0,
        "max": 21.0,
        "batch_size": 16,
        "ranks": 2,
        "steps": 10,
        "image_size": 224,
        "model": "resnet50",
        "infer": False,
        **changed,
    }


def written(folder: Path, text: str, name: str = "node.json") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_all_lines_have_at_most_80_columns():
    for arguments in (
        (*SLOW, "--shared_disk_gbit=1", "--compress=layerwise", "--method=topk"),
        ("--rate=1e-4", "--latency_us=1e6", "--bandwidth_gbit=1e-6", "--overlap=0"),
    ):
        text = estimated(*arguments).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert {len(row) for row in rows(text)} == {11}


def test_the_published_cluster_is_a_line_of_the_table():
    text = estimated(*PUBLISHED, "--compare_on=1").stdout
    table = rows(text)
    assert [row[0] for row in table[1:]] == [str(2**power) for power in range(13)]
    row = next(row for row in table if row[0] == "256")
    # 48 images a rank; 24,576 / 256 / 79.1 s; a node-hour is an hour of a node.
    assert row[1:4] == ["48", "1.283", "1.214"]
    assert float(row[9]) == pytest.approx(4680 * 1.283 / 3600, abs=0.01)
    assert float(row[10]) == pytest.approx(256 * float(row[9]), rel=0.01)
    assert "There is no knee up to 4,096 nodes" in joined(text)
    assert "not compressed  " not in text  # One node has nothing to compare.


def test_the_fewest_nodes_for_a_time_are_told():
    done = estimated(*PUBLISHED, "--within=1h", "--json").stdout
    found = json.loads(done.splitlines()[-1])["within"]
    assert f"Within 1h: on {found['num_nodes']} nodes, in" in joined(done)
    assert found["hours"] <= 1
    fewer = values(*PUBLISHED, f"--nodes={found['num_nodes'] * 3 // 4}")["nodes"]
    assert fewer[0]["hours"] > 1


def test_a_time_that_no_number_reaches_the_knee_and_ways_to_exchange_are_told():
    text = estimated(*SLOW, "--within=1h", "--compare_on=64", "--json").stdout
    told, found = joined(text), json.loads(text.splitlines()[-1])
    assert "No number of nodes trains in 1h: the fastest, " in told
    assert found["within"] is None
    knee = found["knee"]["num_nodes"]
    assert 64 <= knee <= 512
    assert f"The knee is at {knee} nodes" in told
    assert "On 64 nodes" in text
    lines = {line[:20].strip(): line for line in text.splitlines()}
    assert lines["not compressed"].split()[-1] == "1.00"
    assert found["exchanges"]["not compressed"]["num_nodes"] == 64
    limit = found["exchanges"]["topk, 1 %"]["pays_below_bytes_per_second"]
    assert f"below {limit * 8e-9:.3g} Gbit/s" in lines["topk, 1 %"]


def test_settings_of_the_run_are_those_that_are_given():
    given = ("--nodes=4,8", "--train_batch_size=1024", "--train_steps=7000")
    coding = ("--compress=layerwise", "--method=topk", "--ratio=0.01")
    dense, coded = (values(*SLOW, *given, *more)["nodes"] for more in ((), coding))
    assert [row["num_nodes"] for row in dense] == [4, 8]
    assert (dense[0]["global_batch_size"], dense[0]["num_steps"]) == (1024, 7000)
    assert coded[1]["sent_bytes"] < dense[1]["sent_bytes"] / 10
    text = estimated(*SLOW, "--compress=layerwise", "--method=bf16").stdout
    assert "the time of its codec wasn't measured" in joined(text)


def test_phases_of_local_sgd_and_sizes_of_images_are_those_of_the_recipe(tmp_path):
    schedule = {"peak_value": 0.05, "warmup_length": 1}
    recipe = {
        "based_on": "imagenette",
        "name": "mine",
        "phases": [
            {"name": "together", "epochs": 8, "image_size": 64, "schedule": schedule},
            {"name": "apart", "epochs": 8, "sync_every": 8},
        ],
    }
    path = written(tmp_path, json.dumps(recipe), "mine.json")
    flags = (f"--recipe={path}", "--rate=100", "--num_classes=10", "--json")
    text = estimated(*flags).stdout
    # 9,469 images of Imagenette in batches of 64: 1,184 steps of 8 epochs, of which the
    # second half has 148 rounds of 8.
    assert "not compressed in 1,184 steps, then 148 averages" in joined(text)
    assert "94.1 MB of gradients" in joined(text)
    # The rate is that of 128 pixels; images of 64 have a quarter of these.
    # The 16 epochs have an odd number of steps.
    compute = json.loads(text.splitlines()[-1])["nodes"][0]["compute"]
    assert compute == pytest.approx(0.64 * (0.25 + 1) / 2, rel=1e-3)


def test_the_flags_of_the_cluster_have_the_units_in_their_names():
    flags = ("--bandwidth_gbit=8", "--latency_us=5", "--shared_disk_gbit=16")
    found = values(*PUBLISHED, *flags, "--overlap=0.5", "--step_noise=0.1")["cluster"]
    names = ("images_per_second", "ranks_per_node", "latency", "bandwidth", "overlap")
    numbers = [found[name] for name in (*names, "step_noise", "shared_disk")]
    assert numbers == [79.1, 2, pytest.approx(5e-6), 1e9, 0.5, 0.1, 2e9]


def test_a_figure_is_drawn_only_on_request(tmp_path):
    before = "matplotlib" in sys.modules
    estimated(*PUBLISHED)
    assert ("matplotlib" in sys.modules) == before
    estimated(*SLOW, "--shared_disk_gbit=1", f"--plot={tmp_path}/made/a.svg")
    drawn = (tmp_path / "made" / "a.svg").read_text()
    assert drawn.count("<svg") == 1


def test_a_benchmark_tells_rate_ranks_and_noise(tmp_path):
    file = written(tmp_path, f"a table\n{json.dumps(result())}\n")
    found = values(f"--benchmark={file}")["cluster"]
    assert (found["images_per_second"], found["ranks_per_node"]) == (20.0, 2)
    # The range of 10 steps is 2 * 1.53875 standard deviations.
    spread = 20 / 19 - 20 / 21
    assert found["step_noise"] == pytest.approx(spread / (2 * 1.53875), rel=1e-4)
    assert values(f"--benchmark={file}", "--step_noise=0")["cluster"]["step_noise"] == 0
    single = written(tmp_path, json.dumps(result(steps=1, min=20, max=20), indent=1))
    assert values(f"--benchmark={single}")["cluster"]["step_noise"] == 0.02


@pytest.mark.parametrize(
    ("speeds", "rate", "fixed"),
    [
        # 0.2 s, and 0.05 s an image: 32 images in 1.8 s, 8 in 0.6 s.
        ({16: 32 / 1.8, 4: 8 / 0.6}, 20.0, 0.2),
        # Larger batches that are slower leave no negative time.
        ({4: 20.0, 16: 16.0}, 40 / (8 / 20 + 32 / 16), 0.0),
    ],
)
def test_two_batch_sizes_tell_what_a_step_takes_without_images(speeds, rate, fixed):
    results = [
        estimate.Benchmark(**result(batch_size=batch, images_per_second=speed))
        for batch, speed in speeds.items()
    ]
    assert estimate.fitted_speed(results) == pytest.approx((rate, fixed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "by --rate or by --benchmark; got neither"),
        ((*OTHER, "--benchmark=a"), "got both"),
        (("--rate=1e-320",), "--rate must be above 0"),
        ((*OTHER, "--nodes=5000"), "--nodes must be from 1 to 4,096; got 5,000."),
        ((*PUBLISHED, "--nodes=1,100"), "nearest numbers of nodes are 96 and 128."),
        ((*PUBLISHED, "--compare_on=100"), "are 96 and 128"),
        ((*OTHER, "--ranks_per_node=7"), "must divide the global batch of 24,576"),
        ((*OTHER, "--within=1"), "--within must be a time above 0 in s, min or h"),
        ((*OTHER, "--plot=a.txt"), "--plot must end in"),
        ((*OTHER, "--recipe=cifar10_inception_async"), "synchronous training"),
        ((*OTHER, "--compress=layerwise", "--method=powersgd"), "is not estimated"),
        (("--benchmark=/nowhere",), "No such file"),
    ],
    ids=str,
)
def test_bad_flags_are_refused_in_one_sentence(arguments, message):
    assert_refused(run(estimate, *arguments), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("images/s 20", "its last line must hold JSON"),
        ('{"ratio": 1.5, "pairs": 5}', "'images_per_second' is missing"),
        (json.dumps(result(images_per_second=0)), "'images_per_second' must be above"),
        (json.dumps(result(infer=True)), "it is of evaluation"),
        (json.dumps(result(model="resnet18")), "it is of resnet18"),
        ("\udcff", "it isn't text"),
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_other_files_are_refused_in_one_sentence(tmp_path, text, message):
    (tmp_path / "node.json").write_bytes(text.encode(errors="surrogateescape"))
    done = run(estimate, f"--benchmark={tmp_path}/node.json")
    assert_refused(done, message)
    assert f"{tmp_path}/node.json" in done.stderr


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    one = written(tmp_path, json.dumps(result()))
    other = written(tmp_path, json.dumps(result(image_size=64)), "other.json")
    done = run(estimate, f"--benchmark={one},{other}")
    assert_refused(done, "must have the same ranks and image_size")


def test_numbers_and_times_are_shown_in_few_characters():
    cells = [estimate._cell(value) for value in (9.8e99, 9.96e99, math.inf)]
    assert cells == ["9.8e99", ">9e99", ">9e99"]
    assert estimate.parse_time("1h", "--within") == 3600
    assert estimate.parse_time("1.5 min", "--within") == 90
