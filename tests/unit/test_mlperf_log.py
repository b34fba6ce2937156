import dataclasses
import json
import pathlib
import re

import pytest
from mlperf_logging.compliance_checker import mlp_compliance

from eval.benchmark_logs import mlperf_log
from resnet.config.config import Config, save_config
from resnet.config.recipes import digits, imagenet_lars
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from resnet.watchdog import history
from tests.in_process import assert_refused, run

BEGAN = 1_700_000_000.0
SUBMISSION = ("--submission_org=nobody", "--submission_platform=two hosts")


@pytest.fixture
def config(tmp_path) -> Config:
    """Settings of a run of MLPerf's size, saved in a folder of their own."""
    recipe = next(one for one in imagenet_lars.RECIPES if one.name == "lars_40ep_4k")
    config = resolve(
        recipe,
        {"model_dir": str(tmp_path / "model"), "seed": 7},
        num_train_examples=1_281_167,
        class_names=tuple(map(str, range(1000))),
    )
    save_config(config)
    return config


def evaluation(config: Config, epoch: int, top1: float, time: float) -> jsonl.Line:
    step = round(epoch * config.steps_per_epoch)
    numbers = {"top1": top1, "count": 50_000, "seconds": 20.5, "time": time}
    return jsonl.make_line("eval", step, config.epoch(step), numbers)


def write_run(config: Config, *lines: jsonl.Line, num_starts: int = 1) -> None:
    """Writes the files of a run of 64 ranks that has begun at `BEGAN`."""
    folder = pathlib.Path(config.model_dir)
    (folder / jsonl.FILE).write_text("".join(map(jsonl.encode, lines)))
    events = [
        *num_starts * [{"event": "start", "process_start": BEGAN, "num_ranks": 64}],
        {"event": "end", "reason": "the training is done"},
    ]
    timed = [{**event, "time": BEGAN + 5000} for event in events]
    text = "".join(json.dumps(event) + "\n" for event in timed)
    (folder / history.FILE).write_text(text)


def written(config: Config, *flags: str) -> list[tuple]:
    """Returns what the program writes: type, key, seconds since the begin, the rest."""
    done = run(mlperf_log, f"--model_dir={config.model_dir}", *SUBMISSION, *flags)
    path = pathlib.Path(config.model_dir, "result_0.txt")
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    events = []
    for line in path.read_text().splitlines():
        event = json.loads(line.removeprefix(":::MLLOG "))
        metadata = event["metadata"]
        assert metadata.pop("file") == "eval/benchmark_logs/mlperf_log.py"
        del metadata["lineno"]
        seconds = event["time_ms"] / 1000 - BEGAN
        kind = event["event_type"].removeprefix("INTERVAL_")
        events.append((kind, event["key"], seconds, event["value"], metadata))
    return events


def is_accepted(config: Config) -> bool:
    """Returns whether the compliance checker of MLPerf accepts the log."""
    checker = mlp_compliance.make_checker("training", "4.0.0", False, True)
    path = pathlib.Path(config.model_dir, "result_0.txt")
    common = "training_4.0.0/common.yaml"
    return mlp_compliance.main(str(path), common, checker)[0]


def test_the_events_have_the_times_and_accuracies_of_the_run(config):
    write_run(
        config,
        evaluation(config, 4, 0.5, BEGAN + 400),
        evaluation(config, 8, 0.76, BEGAN + 800.25),
        evaluation(config, 12, 0.77, BEGAN + 1200),
    )
    events = written(config)
    assert [event for event in events if event[0] != "POINT_IN_TIME"] == [
        ("START", "init_start", 0, None, {}),
        ("END", "init_stop", 0, None, {}),
        ("START", "run_start", 0, None, {}),
        *(
            ("START", "block_start", 0, None, {"first_epoch_num": 0, "epoch_count": 4}),
            (
                "END",
                "block_stop",
                379.5,
                None,
                {"first_epoch_num": 0, "epoch_count": 4},
            ),
            ("START", "eval_start", 379.5, None, {"epoch_num": 4}),
            ("END", "eval_stop", 400, None, {"epoch_num": 4}),
        ),
        *(
            (
                "START",
                "block_start",
                400,
                None,
                {"first_epoch_num": 4, "epoch_count": 4},
            ),
            (
                "END",
                "block_stop",
                779.75,
                None,
                {"first_epoch_num": 4, "epoch_count": 4},
            ),
            ("START", "eval_start", 779.75, None, {"epoch_num": 8}),
            ("END", "eval_stop", 800.25, None, {"epoch_num": 8}),
        ),
        ("END", "run_stop", 800.25, None, {"status": "success"}),
    ]
    accuracies = [event[2:] for event in events if event[1] == "eval_accuracy"]
    assert accuracies == [
        (400, 0.5, {"epoch_num": 4}),
        (800.25, 0.76, {"epoch_num": 8}),
    ]


def test_the_settings_are_those_of_the_recipe(config):
    write_run(config, evaluation(config, 40, 0.76, BEGAN + 400))
    events = written(config)
    settings = {
        event[1]: event[3]
        for event in events
        if event[0] == "POINT_IN_TIME" and event[1] != "eval_accuracy"
    }
    # Source: rcps_resnet.json, the point of a batch of 4,096; 64 images on each rank.
    assert settings == {
        "cache_clear": False,
        "submission_benchmark": "resnet",
        "submission_division": "open",
        "submission_org": "nobody",
        "submission_platform": "two hosts",
        "submission_status": "research",
        "seed": 7,
        "global_batch_size": 4096,
        "gradient_accumulation_steps": 1,
        "train_samples": 1_281_167,
        "eval_samples": 50_000,
        "opt_name": "lars",
        "lars_epsilon": 0.0,
        "model_bn_span": 64,
        "lars_opt_momentum": 0.9,
        "lars_opt_weight_decay": 2e-4,
        "lars_opt_base_learning_rate": 10.0,
        "lars_opt_learning_rate_warmup_epochs": 5,
        "lars_opt_end_learning_rate": 1e-4,
        "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_learning_rate_decay_steps": 13_137,
    }


@pytest.mark.parametrize("division", ["open", "closed"])
def test_the_compliance_checker_accepts_a_run_of_either_division(config, division):
    write_run(config, evaluation(config, 40, 0.7601, BEGAN + 400))
    written(config, f"--submission_division={division}")
    assert is_accepted(config)


def test_the_compliance_checker_refuses_a_run_below_the_target(config):
    write_run(config, evaluation(config, 40, 0.7589, BEGAN + 400))
    events = written(config, "--submission_division=closed")
    assert events[-1][1:] == ("run_stop", 5000, None, {"status": "aborted"})
    assert not is_accepted(config)


def test_a_run_of_momentum_has_the_keys_of_sgd(config):
    small = resolve(
        digits.DIGITS, {"model_dir": config.model_dir}, 1437, tuple("0123456789")
    )
    save_config(small)
    write_run(small, evaluation(small, 4, 0.9, BEGAN + 10))
    keys = {event[1] for event in written(small, "--target_top1=0.97")}
    assert {
        "sgd_opt_base_learning_rate",
        "sgd_opt_momentum",
        "sgd_opt_weight_decay",
    } <= keys
    assert is_accepted(small)
    save_config(dataclasses.replace(small, optimizer="sgdw"))
    of_sgdw = {event[1] for event in written(small, "--target_top1=0.97")}
    assert keys - of_sgdw == {"sgd_opt_weight_decay"}


@pytest.mark.parametrize(
    ("lines", "num_starts", "reason"),
    [
        (1, 2, "expected a run that was started once"),
        (0, 1, "expected a run with evaluations; it has none"),
    ],
)
def test_runs_that_mlperf_cannot_time_are_refused(config, lines, num_starts, reason):
    line = evaluation(config, 4, 0.5, BEGAN + 400)
    write_run(config, *lines * [line], num_starts=num_starts)
    done = run(mlperf_log, f"--model_dir={config.model_dir}", *SUBMISSION)
    assert_refused(done, reason)


def test_runs_of_other_optimizers_are_refused(config):
    save_config(dataclasses.replace(config, optimizer="muon"))
    write_run(config, evaluation(config, 4, 0.5, BEGAN + 400))
    done = run(mlperf_log, f"--model_dir={config.model_dir}", *SUBMISSION)
    assert_refused(done, "(lars, momentum, sgdw); got muon")


@pytest.mark.parametrize("missing", ["time", "seconds"])
def test_runs_without_times_are_refused(config, missing):
    line = evaluation(config, 4, 0.5, BEGAN + 400)
    del line[missing]
    write_run(config, line)
    done = run(mlperf_log, f"--model_dir={config.model_dir}", *SUBMISSION)
    assert_refused(done, "expected the time and seconds of each evaluation")


def test_the_submission_must_be_named(config):
    done = run(mlperf_log, f"--model_dir={config.model_dir}")
    assert_refused(done, "--submission_org is required and must not be empty")


def test_the_extra_is_what_the_tests_use():
    root = pathlib.Path(mlperf_log.__file__).parents[2]
    wanted = re.search('"mlperf": \\["(.*?)"\\]', (root / "setup.py").read_text())
    assert f"\n{wanted[1]} " in (root / "requirements-dev.in").read_text()
