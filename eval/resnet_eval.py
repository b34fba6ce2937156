r"""Evaluates the checkpoints of a training run on every validation image.

python eval/resnet_eval.py --data_dir=RECORDS --model_dir=MODEL
python eval/resnet_eval.py --split=train --data_dir=RECORDS --model_dir=MODEL
mpirun -np 2 python eval/resnet_eval.py --checkpoints=all \
    --eval_batch_size=200 --data_dir=RECORDS --model_dir=MODEL \
    --json_file=eval.json
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from data_prep.records.manifest import RecordSet
from data_prep.sources import imagenet_labels
from eval import checkpoint_choice, flag_topics
from eval.evaluation_report import EvaluationReport, check_json_file
from resnet import shared_flags
from resnet.base import bounds
from resnet.base.errors import UserError, parse_flags
from resnet.checkpoint.watch import CheckpointWatch
from resnet.config.augmentations import VIEWS
from resnet.config.config import Config, load_config
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.runtime import host_warnings, program, startup
from resnet.runtime.preemption import StopSignals

if TYPE_CHECKING:  # They import TensorFlow.
    from eval.checkpoint_evaluation import CheckpointEvaluation
    from eval.prediction_store import PredictionStore
    from resnet.data.example_shard import ExampleShard

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "checkpoints",
    "latest",
    "Checkpoints to evaluate: latest, best (highest top-1), all, phases (the last one"
    " of each phase), or a list of steps such as 100,200.",
)
flags.DEFINE_enum(
    "weights",
    None,
    ("raw", "ema", "both"),
    "Weights to evaluate: raw, ema (their exponential moving average), or both. By"
    " default both if the run has EMA weights, else raw.",
)
flags.DEFINE_enum(
    "combine",
    "none",
    ("none", "weights", "predictions"),
    "Evaluate the mean of the checkpoints' weights or the mean of their predictions,"
    " instead of each checkpoint by itself.",
)
flags.DEFINE_enum(
    "split",
    "validation",
    ("validation", "train"),
    "The split of the data set to evaluate: the validation images, or the training"
    " images, cropped as validation images are.",
)
flags.DEFINE_enum(
    "views",
    None,
    tuple(VIEWS),
    "Test-time augmentation: predictions are averaged over the center crop; center and"
    " its horizontal flip; these and both shifted by a pixel; four corners and center;"
    " or these five and their flips. By default that of the run's recipe.",
)
flags.DEFINE_bool(
    "watch", False, "Evaluate each checkpoint as it appears, up to the last of the run."
)
flags.DEFINE_float(
    "watch_minutes",
    60.0,
    "Minutes that --watch waits for each checkpoint; a timeout exits with code 1.",
)
flags.DEFINE_string("json_file", None, "JSON file to write the results to.")
flags.DEFINE_bool(
    "store_predictions",
    False,
    "Store what each evaluation predicts for each image in the folder predictions of"
    " --model_dir, for eval/report.py.",
)


def main(argv: Sequence[str], process: ProcessInfo, communicator: Communicator) -> None:
    """Evaluates as the flags say."""
    with communicator.collective_errors():
        parse_flags(argv, __doc__, flag_topics.EVALUATION)
        shared_flags.check()
        requested = checkpoint_choice.parse(FLAGS.checkpoints)
        if communicator.rank == 0:  # The only rank that writes it.
            check_json_file(FLAGS.json_file)
        check_own_flags()
    signals = StopSignals() if FLAGS.watch else None
    startup.join_job(process, communicator, FLAGS.stall_seconds)
    record_set = record_sets.open_record_set(
        FLAGS.data_dir, FLAGS.split, process, communicator
    )
    watch = start_watch(communicator, signals) if signals else None
    run_config, steps = read_run(requested, watch is not None, communicator)
    with communicator.collective_errors():
        check_classes(record_set, run_config)
        weights = checkpoint_choice.weights_to_evaluate(
            FLAGS.weights, run_config, FLAGS.model_dir
        )
    startup.check_same_settings(
        f"{FLAGS.split} data and run", record_set, run_config, communicator
    )
    with communicator.collective_errors():
        config = with_flags(run_config)
        splits = splits_to_read(config, record_set)
    shards = startup.check_shards(record_set, splits, config.shard_by, communicator)
    with host_warnings.gathered(communicator):
        threads = startup.start_on_own_cores(
            process,
            communicator,
            FLAGS.num_intra_threads,
            FLAGS.num_inter_threads,
            FLAGS.kmp_blocktime,
        )
        from resnet.runtime import precision

        example_shards = startup.open_shards(record_set, shards, communicator)
        precision.choose(config.precision, communicator)  # Warns where bf16 is slow.
    evaluation = make_evaluation(
        config, example_shards, threads, weights, signals, communicator, record_set
    )
    evaluate(evaluation, requested, steps, watch)


def start_watch(communicator: Communicator, signals: StopSignals) -> CheckpointWatch:
    """Returns the watch of the run, once the run has written its first checkpoint.

    Before that, the run may still change its settings.
    """
    watch = CheckpointWatch(
        pathlib.Path(FLAGS.model_dir), FLAGS.watch_minutes, communicator, signals
    )
    watch.next_step()
    return watch


def read_run(
    requested: checkpoint_choice.Requested, is_watched: bool, communicator: Communicator
) -> tuple[Config, list[int]]:
    """Returns the settings of the run, and the steps of the checkpoints to evaluate.

    Rank 0 reads them for all ranks. A run that is watched has no list of steps.

    Args:
        requested: The requested checkpoints, as `checkpoint_choice.parse` returns them.
        is_watched: Whether checkpoints are evaluated as they appear.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if there is no run, or no such checkpoint.
    """
    config, steps = None, []
    with communicator.collective_errors():
        if communicator.rank == 0:
            config = load_config(FLAGS.model_dir)
            if not is_watched:
                model_dir = pathlib.Path(FLAGS.model_dir)
                steps = checkpoint_choice.choose(requested, model_dir)
                checkpoint_choice.check_combination(
                    FLAGS.combine, FLAGS.checkpoints, steps
                )
    return communicator.broadcast((config, steps))


def make_evaluation(
    config: Config,
    example_shards: Mapping[str, "ExampleShard"],
    threads: Threads,
    weights: Sequence[str],
    signals: StopSignals | None,
    communicator: Communicator,
    record_set: RecordSet,
) -> "CheckpointEvaluation":
    """Returns the evaluation of checkpoints, with the network of the run.

    Args:
        config: The settings of the run, with those of this evaluation.
        example_shards: The examples that this rank reads, by split.
        threads: The threads of this rank.
        weights: The names of the weights to evaluate, as in `evaluated_weights`.
        signals: The stop requests of this rank; None unless a run is watched.
        communicator: The ranks.
        record_set: The data set.
    """
    from eval.checkpoint_evaluation import CheckpointEvaluation
    from resnet.evaluation.evaluator import Evaluator
    from resnet.evaluation.precise_bn import PreciseBN
    from resnet.optim.train_state import TrainState

    state = TrainState(config)
    num_parallel_calls = FLAGS.num_parallel_calls or len(threads.cpus)
    evaluator = Evaluator(
        state.model,
        example_shards[FLAGS.split],
        config,
        communicator,
        num_parallel_calls,
        config.eval_views,
        signals,
    )
    precise_bn = None
    if config.recalibration_batches:
        precise_bn = PreciseBN(
            state.model,
            example_shards["train"],
            config,
            communicator,
            num_parallel_calls,
            signals,
        )
    json_file = FLAGS.json_file if communicator.rank == 0 else None
    return CheckpointEvaluation(
        pathlib.Path(FLAGS.model_dir),
        state,
        evaluator,
        precise_bn,
        weights,
        EvaluationReport(settings_for_json(config), json_file),
        communicator,
        make_store(
            config.eval_views, example_shards[FLAGS.split], record_set, communicator
        ),
    )


def make_store(
    views: str, shard: "ExampleShard", record_set: RecordSet, communicator: Communicator
) -> "PredictionStore | None":
    """Returns what stores the predictions, if the flags ask for it."""
    if not FLAGS.store_predictions:
        return None
    from eval.prediction_store import PredictionStore

    names = record_set.manifest.class_names
    described = record_set.manifest.class_descriptions
    return PredictionStore(
        pathlib.Path(FLAGS.model_dir),
        views,
        shard.records,
        names,
        described or imagenet_labels.describe(names),
        communicator,
    )


def evaluate(
    evaluation: "CheckpointEvaluation",
    requested: checkpoint_choice.Requested,
    steps: Sequence[int],
    watch: CheckpointWatch | None,
) -> None:
    """Evaluates the requested checkpoints.

    Args:
        evaluation: The evaluation of checkpoints.
        requested: The requested checkpoints, as `checkpoint_choice.parse` returns them.
        steps: The steps of these checkpoints; empty if a run is watched.
        watch: The checkpoints of a run that is watched; otherwise None.
    """
    if watch is not None:
        evaluation.each_from(watch)
    elif FLAGS.combine == "weights":
        evaluation.mean_weights_of(steps)
    elif FLAGS.combine == "predictions":
        evaluation.mean_predictions_of(steps)
    elif requested == "latest":
        evaluation.newest()
    else:
        evaluation.each_of(steps)


def check_own_flags() -> None:
    """Refuses flags that are out of range or contradict each other.

    Raises:
        UserError: With a sentence for the first such flag.
    """
    if problems := bounds.validate_overrides(
        {"recalibration_batches": FLAGS.recalibration_batches}, Config
    ):
        raise UserError(problems[0])
    if not FLAGS.watch_minutes > 0:
        raise UserError(
            f"--watch_minutes must be above 0; got {FLAGS.watch_minutes:g}."
        )
    if FLAGS.store_predictions and FLAGS.split != "validation":
        raise UserError(
            "--store_predictions stores predictions for validation images; got"
            f" --split={FLAGS.split}. Leave out one of the two flags."
        )
    if not FLAGS.watch:
        return
    if FLAGS.combine != "none":
        raise UserError(
            "--watch evaluates each checkpoint by itself and can't combine them. Leave"
            " out --watch or --combine."
        )
    if FLAGS["checkpoints"].present and FLAGS.checkpoints != "all":
        raise UserError(
            "--watch evaluates all checkpoints as they appear; got"
            f" --checkpoints={FLAGS.checkpoints}. Leave out one of the two flags."
        )


def with_flags(config: Config) -> Config:
    """Returns the settings of the run, overridden by the flags of evaluation.

    Raises:
        UserError: If the run can't be evaluated with them.
    """
    given = {
        name: FLAGS[name].value
        for name in ("eval_batch_size", "on_bad_record", "recalibration_batches")
        if FLAGS[name].value is not None
    }
    if FLAGS.views is not None:
        given["eval_views"] = FLAGS.views
    is_frozen = any(phase.freeze_batch_norm for phase in config.phases)
    if given.get("recalibration_batches") and (is_frozen or config.is_async):
        excluding = "freeze_batch_norm" if is_frozen else "--sync_mode=async"
        raise UserError(
            f"--recalibration_batches excludes runs with {excluding}, whose weights"
            " are trained for other statistics: leave it out."
        )
    return dataclasses.replace(config, **given)


def splits_to_read(config: Config, record_set: RecordSet) -> list[str]:
    """Returns the splits of the data set that evaluation needs.

    Raises:
        UserError: If the data set doesn't have them.
    """
    if not config.recalibration_batches or FLAGS.split == "train":
        return [FLAGS.split]
    if "train" not in record_set.manifest.splits:
        raise UserError(
            f"--recalibration_batches={config.recalibration_batches} (by default the"
            f" run's setting) needs training images; {record_set.records_dir} has none."
            " Name a --data_dir that has them, or --recalibration_batches=0."
        )
    return ["validation", "train"]


def settings_for_json(config: Config) -> dict[str, Any]:
    """Returns the settings that the JSON file of the results holds."""
    return {
        "model_dir": FLAGS.model_dir,
        "split": FLAGS.split,
        "views": config.eval_views,
        "combine": FLAGS.combine,
        "recalibration_batches": config.recalibration_batches,
    }


def check_classes(record_set: RecordSet, config: Config) -> None:
    """Refuses a data set whose classes differ from those of the run.

    Raises:
        UserError: If they differ.
    """
    contents = record_set.manifest
    if contents.class_names != config.class_names:
        raise UserError(
            "the data set must have the classes of the run; the run in"
            f" {FLAGS.model_dir} has {config.num_classes} classes"
            f" ({config.class_names[0]}, ...), the data set in {record_set.records_dir}"
            f" has {len(contents.class_names)} ({contents.class_names[0]}, ...). Name"
            " the --data_dir that the run was trained on."
        )


def run() -> None:
    """Runs the program and exits."""
    program.run(main)


if __name__ == "__main__":
    run()
