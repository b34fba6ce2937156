"""Evaluates the checkpoints of a training run on every validation image.

python eval/resnet_eval.py --eval_batch_size 200 --data_dir=RECORDS --model_dir=MODEL
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from absl import flags

from data_prep.errors import UserError, parse_flags
from data_prep.records.manifest import RecordSet
from eval import checkpoint_choice
from eval.evaluation_report import EvaluationReport, check_json_file
from resnet import config as configs
from resnet import program, setting_bounds, shared_flags
from resnet.checkpoint_watch import CheckpointWatch
from resnet.config import Config
from resnet.data import record_sets
from resnet.distributed import Communicator
from resnet.placement import Place
from resnet.stop_signals import StopSignals

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "checkpoints",
    "latest",
    "Which: latest, best, all, phases (those that end one), or steps: 100,200.",
)
flags.DEFINE_enum(
    "weights",
    None,
    ("raw", "ema", "both"),
    "The weights, their moving average, or both; unset: both, if the run has one.",
)
flags.DEFINE_enum(
    "combine",
    "none",
    ("none", "weights", "predictions"),
    "Evaluate the mean of the checkpoints' weights, or of their predictions, instead"
    " of each.",
)
flags.DEFINE_enum(
    "views",
    "center",
    setting_bounds.VIEWS,
    "Of each picture, whose predictions are averaged: its center, that and its mirror"
    " image, corners and center, or these and their mirror images.",
)
flags.DEFINE_bool(
    "watch", False, "Evaluate each checkpoint as it appears, up to the run's last."
)
flags.DEFINE_float(
    "watch_minutes", 60.0, "How long to wait for each; then the exit code is 1."
)
flags.DEFINE_string("json_file", None, "File that the results are written to as JSON.")


def main(argv: Sequence[str], place: Place, communicator: Communicator) -> None:
    """Evaluates as the flags say."""
    with communicator.together():
        parse_flags(argv)
        shared_flags.check()
        requested = checkpoint_choice.parse(FLAGS.checkpoints)
        check_own_flags()
    model_dir = pathlib.Path(FLAGS.model_dir)
    signals = StopSignals() if FLAGS.watch else None
    communicator.start_watchdog(place, FLAGS.stall_seconds)
    record_set = record_sets.open_record_set(
        FLAGS.data_dir, "validation", place, communicator
    )
    watch = None
    if signals is not None:
        watch = CheckpointWatch(model_dir, FLAGS.watch_minutes, communicator, signals)
        watch.next_step()  # A run that saved nothing may still change its settings.
    config, steps = None, []
    with communicator.together():
        if communicator.rank == 0:
            config = configs.load(FLAGS.model_dir)
            if watch is None:
                steps = checkpoint_choice.choose(requested, model_dir)
                check_combination(steps)
    config, steps = communicator.broadcast((config, steps))
    with communicator.together():
        check_classes(record_set, config)
        weights = weights_to_evaluate(config)
    communicator.require_same(
        "validation data and run",
        repr((dataclasses.replace(record_set.manifest, source={}), config)),
    )
    config = with_flags(config)
    with communicator.together():
        splits = splits_to_read(config, record_set)
    shards = {
        name: record_sets.check_split(
            record_set,
            record_set.manifest.splits[name],
            config.shard_by,
            communicator,
        )
        for name in splits
    }
    threads = program.settle_placement(
        place,
        communicator,
        FLAGS.num_intra_threads,
        FLAGS.num_inter_threads,
        FLAGS.kmp_blocktime,
    )

    program.start_tensorflow(communicator)  # Now that its environment is settled.
    from eval.checkpoint_evaluation import CheckpointEvaluation
    from resnet import precision
    from resnet.data import example_shard, record_files
    from resnet.evaluate import Evaluator
    from resnet.recalibration import Recalibration
    from resnet.train_state import TrainState

    with communicator.together():
        shares = {
            name: example_shard.shard_of_rank(
                record_files.open_split(record_set, name), of_ranks, communicator.rank
            )
            for name, of_ranks in shards.items()
        }
    precision.choose(config.precision, communicator)  # Warns where bf16 is slow.
    state = TrainState(config)
    num_parallel_calls = FLAGS.num_parallel_calls or len(threads.cpus)
    evaluator = Evaluator(
        state.model,
        shares["validation"],
        config,
        communicator,
        num_parallel_calls,
        FLAGS.views,
        signals,
    )
    recalibration = None
    if config.recalibration_batches:
        recalibration = Recalibration(
            state.model,
            shares["train"],
            config,
            communicator,
            num_parallel_calls,
            signals,
        )
    report = EvaluationReport(
        settings_for_json(config),
        FLAGS.json_file if communicator.rank == 0 else None,
    )
    evaluation = CheckpointEvaluation(
        model_dir, state, evaluator, recalibration, weights, report, communicator
    )
    if watch is not None:
        evaluation.all_that_come(watch)
    elif FLAGS.combine == "weights":
        evaluation.mean_weights_of(steps)
    elif FLAGS.combine == "predictions":
        evaluation.mean_predictions_of(steps)
    elif requested == "latest":
        evaluation.newest()
    else:
        evaluation.each_of(steps)


def check_own_flags() -> None:
    """Refuses flags that can't be, or not together.

    Raises:
        UserError: With a sentence for the first such flag.
    """
    check_json_file(FLAGS.json_file)
    if problems := setting_bounds.problems_of_given(
        {"recalibration_batches": FLAGS.recalibration_batches}
    ):
        raise UserError(problems[0])
    if not FLAGS.watch_minutes > 0:
        raise UserError(
            f"--watch_minutes must be above 0; got {FLAGS.watch_minutes:g}."
        )
    if not FLAGS.watch:
        return
    if FLAGS.combine != "none":
        raise UserError(
            "--watch evaluates each checkpoint by itself, and can't combine them. Leave"
            " out --watch or --combine."
        )
    if FLAGS["checkpoints"].present and FLAGS.checkpoints != "all":
        raise UserError(
            "--watch evaluates all checkpoints that it sees; got"
            f" --checkpoints={FLAGS.checkpoints}. Leave out one of them."
        )


def check_combination(steps: Sequence[int]) -> None:
    """Refuses to combine what is only one checkpoint.

    Raises:
        UserError: If it is.
    """
    if FLAGS.combine != "none" and len(steps) < 2:
        raise UserError(
            f"--combine={FLAGS.combine} needs several checkpoints;"
            f" --checkpoints={FLAGS.checkpoints} is that of step {steps[0]} alone. Name"
            " others, such as --checkpoints=all."
        )


def weights_to_evaluate(config: Config) -> list[str]:
    """Returns the names of the weights to evaluate, as `weights_in_turn` has them.

    Raises:
        UserError: If the run doesn't have them.
    """
    if config.ema_decay:
        return {"raw": ["raw"], "ema": ["ema"]}.get(FLAGS.weights, ["raw", "ema"])
    if FLAGS.weights in ("ema", "both"):
        raise UserError(
            f"--weights={FLAGS.weights} needs a run with a moving average of its"
            f" weights (--ema_decay); the one in {FLAGS.model_dir} has none."
        )
    return ["raw"]


def with_flags(config: Config) -> Config:
    """Returns the settings of the run, but for those that evaluation has flags for."""
    given = {
        name: FLAGS[name].value
        for name in ("eval_batch_size", "on_bad_record", "recalibration_batches")
        if FLAGS[name].value is not None
    }
    return dataclasses.replace(config, **given)


def splits_to_read(config: Config, record_set: RecordSet) -> list[str]:
    """Returns the splits of the data set that evaluation needs.

    Raises:
        UserError: If the set doesn't have them.
    """
    if not config.recalibration_batches:
        return ["validation"]
    if "train" not in record_set.manifest.splits:
        raise UserError(
            f"--recalibration_batches={config.recalibration_batches}, the run's own if"
            f" it isn't given, needs training images; {record_set.records_dir} has"
            " none. Name a --data_dir that has, or --recalibration_batches=0."
        )
    return ["validation", "train"]


def settings_for_json(config: Config) -> dict[str, Any]:
    """Returns what the file of results says of all of them."""
    return {
        "model_dir": FLAGS.model_dir,
        "views": FLAGS.views,
        "combine": FLAGS.combine,
        "recalibration_batches": config.recalibration_batches,
    }


def check_classes(record_set: RecordSet, config: Config) -> None:
    """Refuses a data set with other classes than the run.

    Raises:
        UserError: If it has.
    """
    contents = record_set.manifest
    if contents.class_names != config.class_names:
        raise UserError(
            f"the run in {FLAGS.model_dir} knows {config.num_classes} classes"
            f" ({config.class_names[0]}, ...), the data in"
            f" {record_set.records_dir} has"
            f" {len(contents.class_names)} ({contents.class_names[0]}, ...): they must"
            " be the same"
        )


def run() -> None:
    """Runs the program and exits."""
    program.run(main)


if __name__ == "__main__":
    run()
