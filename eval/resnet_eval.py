r"""Evaluates the checkpoints of a training run on every validation image.

python eval/resnet_eval.py --data_dir=RECORDS --model_dir=MODEL
python eval/resnet_eval.py --split=train --data_dir=RECORDS --model_dir=MODEL
mpirun -np 2 python eval/resnet_eval.py --checkpoints=all \
    --eval_batch_size=200 --data_dir=RECORDS --model_dir=MODEL \
    --json_file=eval.json
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program as base_program  # Before imports that may fail.

# isort: split

from absl import logging

from data_prep.records.manifest import RecordSet
from data_prep.sources import imagenet_labels
from eval import checkpoint_choice
from eval.checkpoint_choice import weights_to_evaluate
from eval.evaluation_report import EvaluationReport, check_json_file
from resnet.base import cli, commands
from resnet.base.errors import UserError
from resnet.base.settings import setting
from resnet.checkpoint.watch import CheckpointWatch
from resnet.config import command_line, topics
from resnet.config.command_line import JobSettings
from resnet.config.config import Config, load_config
from resnet.config.recipe import VIEWS
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.metrics import class_metrics
from resnet.runtime import host_warnings, program, startup
from resnet.runtime.job import Job
from resnet.runtime.preemption import StopSignals

if TYPE_CHECKING:  # They import TensorFlow.
    from eval.checkpoint_evaluation import CheckpointEvaluation, Evaluation
    from resnet.data.record_files import ExampleShard
    from resnet.evaluation.top_classes import TopClasses


@dataclass(frozen=True)
class EvalSettings:
    """What is evaluated, and where the results go."""

    TOPIC: ClassVar[str] = topics.EVALUATION

    checkpoints: str = setting(
        "latest",
        "Checkpoints to evaluate: latest, best (highest --best_metric of the run), all,"
        " phases (the last one of each phase), or a list of steps such as 100,200.",
        topic=topics.CHECKPOINTS,
    )
    weights: str | None = setting(
        None,
        "Weights to evaluate: raw, ema (their exponential moving average), or both. By"
        " default both if the run has EMA weights, else raw.",
        names=("raw", "ema", "both"),
        unset="all of the run",
        topic=topics.CHECKPOINTS,
    )
    combine: str = setting(
        "none",
        "Evaluate the mean of the checkpoints' weights or the mean of their"
        " predictions, instead of each checkpoint by itself.",
        names=("none", "weights", "predictions"),
        topic=topics.CHECKPOINTS,
    )
    watch: bool = setting(
        False,
        "Evaluate each checkpoint as it appears, up to the last of the run.",
        topic=topics.CHECKPOINTS,
    )
    watch_minutes: float = setting(
        60.0,
        "Minutes that --watch waits for each checkpoint; a timeout exits with code 1.",
        topic=topics.CHECKPOINTS,
    )
    split: str = setting(
        "validation",
        "The split of the data set to evaluate: the validation images, or the training"
        " images, cropped as validation images are.",
        names=("validation", "train"),
    )
    views: str | None = setting(
        None,
        "Test-time augmentation: predictions are averaged over the center crop; center"
        " and its horizontal flip; these and both shifted by a pixel, for all images or"
        " for uncertain ones; four corners and center; or these five and their flips."
        " By default that of the run's recipe.",
        names=tuple(VIEWS),
        unset="those of the recipe",
    )
    json_file: str = setting("", "JSON file to write the results to.", unset="none")
    store_predictions: bool = setting(
        False,
        "Store what each evaluation predicts for each image in the folder predictions"
        " of --model_dir, for eval/report.py.",
    )


_READING = ("num_parallel_calls", "on_bad_record")
# The settings of a run that an evaluation may have otherwise.
_OVERRIDES = ("model_dir", "eval_batch_size", "recalibration_batches", *_READING)
FLAGS: cli.Groups = (
    command_line.FOLDERS,
    cli.Flags(EvalSettings, common=True),
    cli.Flags(Config, names=("eval_batch_size",), common=True),
    cli.Flags(Config, names=_READING),
    cli.Flags(
        Config, ("recalibration_batches",), has_defaults=False, unset="as the run"
    ),
    JobSettings,
    cli.OutputSettings,
)


def main(argv: Sequence[str], more_flags: cli.Groups = ()) -> int:
    """Evaluates as the flags say, as one of the ranks of a job.

    Further flags, of the training program that calls this one, have no effect.
    """
    return program.run(functools.partial(evaluate, (*FLAGS, *more_flags)), argv)


def evaluate(
    groups: cli.Groups,
    argv: Sequence[str],
    process: ProcessInfo,
    communicator: Communicator,
) -> None:
    """Evaluates the checkpoints, and reports each."""
    with communicator.collective_errors():
        line = cli.parse(argv, __doc__, groups)
        settings, processes = line.of(EvalSettings), line.of(JobSettings)
        data_dir, model_dir = line.values["data_dir"], line.values["model_dir"]
        command_line.check_folders(data_dir, model_dir)
        requested = checkpoint_choice.parse(settings.checkpoints)
        if communicator.rank == 0:  # The only rank that writes it.
            check_json_file(settings.json_file)
        check(settings, has_checkpoints="checkpoints" in line.given)
    signals = StopSignals() if settings.watch else None
    startup.join_job(process, communicator, processes.stall_seconds)
    split, wanted = settings.split, settings.weights
    record_set = record_sets.open_record_set(data_dir, split, process, communicator)
    watch = None
    if signals:
        folder, minutes = pathlib.Path(model_dir), settings.watch_minutes
        watch = CheckpointWatch(folder, minutes, communicator, signals)
        watch.next_step()  # Before its first checkpoint, a run may change its settings.
    run_config, steps = read_run(model_dir, settings, requested, communicator)
    with communicator.collective_errors():
        record_sets.check_fits(record_set, run_config, f"the run in {model_dir}")
        weights = weights_to_evaluate(wanted, run_config, model_dir)
    what = f"{split} data and run"
    startup.check_same_settings(what, record_set, run_config, communicator)
    with communicator.collective_errors():
        config = with_overrides(run_config, settings, line)
        config = dataclasses.replace(config, **record_sets.digests(record_set))
        splits = splits_to_read(config, split, record_set)
    shards = startup.check_shards(
        record_set, splits, config.shard_by, communicator, config.on_bad_record
    )
    with host_warnings.gathered(communicator):
        threads = startup.start_on_own_cores(process, communicator, processes)
        from resnet.runtime import precision

        example_shards = startup.open_shards(
            record_set, shards, communicator, config.class_names
        )
        precision.choose(config.precision, communicator)  # Warns where bf16 is slow.
    job = Job(communicator, threads, signals)
    evaluation = make_evaluation(config, settings, weights, example_shards, job)
    how: dict[str, Any] = {
        "views": config.eval_views,
        "recalibration_batches": config.recalibration_batches,
        "other_records": other_records(config, run_config, splits),
    }
    same = {"model_dir": model_dir, "split": split, "combine": settings.combine, **how}
    json_file = settings.json_file if communicator.rank == 0 else ""
    report = EvaluationReport(same, json_file, config.class_names)
    known, described = record_set.manifest, imagenet_labels.describe(config.class_names)
    if known.class_names == config.class_names:
        described = known.class_descriptions or described
    elif communicator.rank == 0:
        logging.warning(
            "The data set has %d of the run's %d classes, which are matched by name",
            len(known.class_names),
            config.num_classes,
        )
    for evaluated, result, top in evaluations_of(
        evaluation, settings.combine, requested, steps, watch
    ):
        evaluated = dataclasses.replace(evaluated, **how)
        two = decision(top, config, communicator)
        with communicator.collective_errors():
            report.add(evaluated, result, two)
        if top and settings.store_predictions:
            records = example_shards[split].records
            evaluation.store(evaluated, top, records, described)
    following = commands.of_run(data_dir, model_dir, known.example_image())
    logging.info("Report:  %s\nPredict: %s", following["Report"], following["Predict"])


def decision(
    top: "TopClasses | None", config: Config, communicator: Communicator
) -> class_metrics.TwoClasses | None:
    """Returns the decision between two classes over the images of all ranks, or None.

    It is None without predictions, and for a network with other than two classes, of
    which an image has one.
    """
    if not top or config.num_classes != 2 or config.multi_label:
        return None
    whole = top.of_all(communicator)
    return class_metrics.two_classes(whole.labels, whole.classes, whole.probabilities)


def check(settings: EvalSettings, has_checkpoints: bool) -> None:
    """Refuses flags that contradict each other, with a UserError."""
    if not settings.watch_minutes > 0:  # Also NaN.
        raise UserError(
            f"--watch_minutes must be above 0; got {settings.watch_minutes:g}."
        )
    if settings.store_predictions and settings.split != "validation":
        raise UserError(
            "--store_predictions stores predictions for validation images; got"
            f" --split={settings.split}. Leave out one of the two flags."
        )
    if settings.watch and settings.combine != "none":
        raise UserError(
            "--watch evaluates each checkpoint by itself and can't combine them. Leave"
            " out --watch or --combine."
        )
    if settings.watch and has_checkpoints and settings.checkpoints != "all":
        raise UserError(
            "--watch evaluates all checkpoints as they appear; got"
            f" --checkpoints={settings.checkpoints}. Leave out one of the two flags."
        )


def read_run(
    model_dir: str,
    settings: EvalSettings,
    requested: checkpoint_choice.Requested,
    communicator: Communicator,
) -> tuple[Config, list[int]]:
    """Returns the settings of the run, and the steps of the checkpoints to evaluate.

    Rank 0 reads them for all ranks. A run that is watched has no list of steps.
    """
    config, steps = None, []
    with communicator.collective_errors():
        if communicator.rank == 0:
            config = load_config(model_dir)
            if not settings.watch:
                steps = checkpoint_choice.choose(requested, pathlib.Path(model_dir))
                checkpoint_choice.check_combination(
                    settings.combine, settings.checkpoints, steps
                )
    return communicator.broadcast((config, steps))


def with_overrides(
    config: Config, settings: EvalSettings, line: cli.CommandLine
) -> Config:
    """Returns the settings of the run, overridden by the flags of evaluation."""
    overrides = {name: line.values[name] for name in _OVERRIDES}
    overrides["eval_views"] = settings.views
    overrides = {name: value for name, value in overrides.items() if value is not None}
    is_frozen = any(phase.freeze_batch_norm for phase in config.phases)
    if overrides.get("recalibration_batches") and (is_frozen or config.is_async):
        excluding = "freeze_batch_norm" if is_frozen else "--sync_mode=async"
        raise UserError(
            f"--recalibration_batches excludes runs with {excluding}, whose weights"
            " are trained for other statistics: leave it out."
        )
    is_averaged = overrides.get("eval_views", "center") != "center"
    if config.multi_label and (is_averaged or settings.combine == "predictions"):
        flag = f"views={settings.views}" if is_averaged else "combine=predictions"
        raise UserError(
            f"--{flag} averages the probabilities of one class an image; the run is of"
            " several labels an image. Leave it out."
        )
    return dataclasses.replace(config, **overrides)


def other_records(config: Config, run_config: Config, splits: Sequence[str]) -> str:
    """Returns the first digits of the digests of those splits that aren't the run's."""
    names = [f"{split}_records_sha256" for split in splits]
    others = [
        name for name in names if getattr(config, name) != getattr(run_config, name)
    ]
    if others:
        logging.warning("the records that are read aren't those of the run")
    return "-".join(getattr(config, name)[:8] for name in others)


def splits_to_read(config: Config, split: str, record_set: RecordSet) -> list[str]:
    """Returns the splits of the data set that the evaluation of a split needs."""
    if not config.recalibration_batches or split == "train":
        return [split]
    if "train" not in record_set.manifest.splits:
        raise UserError(
            f"--recalibration_batches={config.recalibration_batches} (by default the"
            f" run's setting) needs training images; {record_set.records_dir} has none."
            " Name a --data_dir that has them, or --recalibration_batches=0."
        )
    return ["validation", "train"]


def make_evaluation(
    config: Config,
    settings: EvalSettings,
    weights: Sequence[str],
    example_shards: Mapping[str, "ExampleShard"],
    job: Job,
) -> "CheckpointEvaluation":
    """Returns the evaluation of checkpoints; the shards of this rank are by split."""
    from eval.checkpoint_evaluation import CheckpointEvaluation
    from resnet.evaluation.evaluator import Evaluator
    from resnet.evaluation.precise_bn import PreciseBN
    from resnet.optim.train_state import TrainState

    state, ranks = TrainState(config), job.communicator
    evaluator = Evaluator(state.model, example_shards[settings.split], config, job)
    precise_bn = None
    if config.recalibration_batches:
        precise_bn = PreciseBN(state.model, example_shards["train"], config, job)
    keeps = settings.store_predictions or config.num_classes == 2
    return CheckpointEvaluation(state, evaluator, precise_bn, weights, keeps, ranks)


def evaluations_of(
    evaluation: "CheckpointEvaluation",
    combine: str,
    requested: checkpoint_choice.Requested,
    steps: Sequence[int],
    watch: CheckpointWatch | None,
) -> Iterator["Evaluation"]:
    """Yields the evaluations of the requested checkpoints, or of those of a watch."""
    if watch is not None:
        return evaluation.each_from(watch)
    if combine == "weights":
        return evaluation.mean_weights_of(steps)
    if combine == "predictions":
        return evaluation.mean_predictions_of(steps)
    if requested == "latest":
        return evaluation.newest()
    return evaluation.each_of(steps)


if __name__ == "__main__":
    sys.exit(base_program.run(main))
