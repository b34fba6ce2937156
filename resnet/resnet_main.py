"""Trains a ResNet on one process, or on all ranks that mpirun starts.

mpirun -np 2 python resnet/resnet_main.py --recipe=imagenette --data_dir=D --model_dir=M
"""

import contextlib
import copy
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from data_prep import import_failures

import_failures.report()  # Before the imports that may fail.

from resnet.runtime import launcher_death
from resnet.runtime.preemption import Preempted, StopSignals

if __name__ == "__main__":  # Before the other imports, which take half a second.
    SIGNALS = StopSignals(launcher_death.fork_rank())

from absl import flags, logging

from data_prep.errors import UserError, parse_flags, print_to_pipe
from data_prep.records import manifest
from resnet import commands, shared_flags, train_flags
from resnet.async_training import roles as async_roles
from resnet.checkpoint import retention, run_folder, step_dirs
from resnet.checkpoint.weight_formats import files as weight_files
from resnet.config.config import (
    CONFIG_FILE,
    Config,
    check_ranks,
    differences,
    load_config,
    refuse_other,
    save_config,
)
from resnet.config.resolve import resolve
from resnet.data import record_sets
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.exchange import plan as exchange_plan
from resnet.export import end_of_training
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.models.names import CIFAR_MODELS
from resnet.recipes import changes as recipe_changes
from resnet.recipes import earlier, explain, json_file, registry
from resnet.runtime import host_warnings, leaving, program, startup
from resnet.runtime.run_lock import Locked, RunLock
from resnet.watchdog import failure_file

if TYPE_CHECKING:  # It imports TensorFlow.
    from resnet.data.example_shard import ExampleShard

FLAGS = flags.FLAGS
# Where these are "auto", a measurement at the start of the run decides.
MEASURED_SETTINGS = ("precision", "exchange")


def main(
    argv: Sequence[str],
    process: ProcessInfo,
    communicator: Communicator,
    signals: StopSignals,
) -> None:
    """Trains as the flags say."""
    with communicator.collective_errors():
        parse_flags(argv, __doc__)
        if FLAGS.list_recipes or FLAGS.explain:
            print_plan(communicator)
            return
        shared_flags.check()
        train_flags.check()
    startup.join_job(
        *(process, communicator, FLAGS.stall_seconds, FLAGS.model_dir),
        outlives_launcher=signals.can_outlive_launcher,
    )
    signals.outlive_launcher(communicator.await_end_of_watchdog)
    record_set = record_sets.open_record_set(
        FLAGS.data_dir, "train", process, communicator
    )
    config, splits, lock = resolve_settings(record_set.manifest, communicator)
    shared = dataclasses.replace(config, data_dir="")  # It may differ between hosts.
    startup.check_same_settings(
        "data set and settings", record_set, shared, communicator
    )
    shards_of_ranks = startup.check_shards(
        record_set, splits, config.shard_by, communicator
    )
    if any(communicator.allgather(bool(signals.seen))):
        raise Preempted("stopped before the training began")
    if config.is_async:
        train_async(
            *(config, record_set, shards_of_ranks, process),
            *(communicator, signals, lock),
        )
        return
    with host_warnings.gathered(communicator):
        threads = startup.start_on_own_cores(
            process,
            communicator,
            FLAGS.num_intra_threads,
            FLAGS.num_inter_threads,
            FLAGS.kmp_blocktime,
        )
        from resnet.exchange import choice as exchange_choice
        from resnet.runtime import precision

        shards = startup.open_shards(record_set, shards_of_ranks, communicator)
        config = dataclasses.replace(
            config,
            precision=precision.choose(config.precision, communicator),
            exchange=exchange_choice.choose(config, communicator),
        )
    write_settings(config, communicator.num_ranks, communicator)
    train(config, shards, threads, communicator, signals, lock)


def train_async(
    config: Config,
    record_set: manifest.RecordSet,
    shards_of_ranks: Mapping[str, list[tuple[int, ...]]],
    process: ProcessInfo,
    communicator: Communicator,
    signals: StopSignals,
    lock: RunLock | None,
) -> None:
    """Trains on parameter servers: rank 0 coordinates, the others serve or work.

    Args:
        config: The settings of the run.
        record_set: The data set.
        shards_of_ranks: The shards that each rank reads, by split.
        process: The rank of this process and its position on the node.
        communicator: The ranks.
        signals: The stop requests of this rank.
        lock: The lock of the run's folder on rank 0; None on other ranks.
    """
    from resnet.async_training import job

    workers = num_parts(config, communicator.num_ranks)
    role = async_roles.of_rank(communicator.rank, config.num_ps)
    given = set(os.environ)
    threads = startup.settle_placement(
        process,
        communicator,
        FLAGS.num_intra_threads,
        FLAGS.num_inter_threads,
        FLAGS.kmp_blocktime,
        shares_cores=role.job != async_roles.WORKER,
    )

    if communicator.rank == 0 and "TF_CPP_MIN_LOG_LEVEL" not in given:
        # A lost worker isn't an error: its rank tells of it in a sentence.
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

    def coordinate(
        endpoints: Sequence[job.Endpoint],
        alone: Communicator,
        job_signals: job.JobSignals,
    ) -> None:
        startup.start_tensorflow(alone)
        leaving.require_at_once()
        from resnet.async_training import cluster
        from resnet.async_training.training import AsyncTraining
        from resnet.runtime import precision

        chosen = precision.choose(config.precision, alone)
        settings = dataclasses.replace(config, precision=chosen)
        of_rank_0 = {name: shards[:1] for name, shards in shards_of_ranks.items()}
        shards = startup.open_shards(record_set, of_rank_0, alone)
        write_settings(settings, workers, alone)
        training = AsyncTraining(
            settings,
            shards["train"],
            shards.get("validation"),
            cluster.connect(endpoints),
            workers,
            alone,
            config.num_parallel_calls or len(threads.cpus),
            job_signals,
            lock,
            FLAGS.stall_seconds,
        )
        communicator.report_status("coordinating the workers", is_timed=False)
        with failures_recorded(settings, communicator):
            training.run()
            end_of_training.export(settings, alone)

    job.run(
        *(config.num_ps, threads, communicator, FLAGS.stall_seconds, signals),
        coordinate,
    )


def print_plan(communicator: Communicator) -> None:
    """Prints the recipes, or what the run would do, on rank 0.

    Raises:
        UserError: If the settings of the run are wrong.
    """
    if FLAGS.list_recipes:
        print_to_pipe(explain.list_recipes(list(registry.RECIPES.values())))
        return
    shared_flags.check_values()
    recipe, overrides = json_file.get(FLAGS.recipe), train_flags.overrides()
    num_examples, class_names = recipe.num_train_examples, ("of the data",)
    if FLAGS.data_dir:
        contents = manifest.load(FLAGS.data_dir, "train").manifest
        num_examples = contents.splits["train"].num_examples
    config = resolve(recipe, overrides, num_examples, class_names)
    if FLAGS.data_dir and splits_to_read(config, contents) == ["train"]:
        config = dataclasses.replace(config, mode="train")
    if config.initial_weights:
        weight_files.kind_of(pathlib.Path(config.initial_weights))
    num_ranks = max(communicator.num_ranks, FLAGS.num_ranks)
    parts = num_parts(config, num_ranks)
    check_ranks(config, parts)
    changes = recipe_changes.describe_changes(recipe, overrides, config, parts)
    if FLAGS.explain_plot and communicator.rank == 0:
        from resnet.metrics import figure_file  # Takes a second to import.
        from resnet.recipes import explain_plot

        plot_file = pathlib.Path(FLAGS.explain_plot)
        figure_file.write(explain_plot.draw(config), plot_file, "--explain_plot")
    exchange = ""
    if config.compress != "none":
        exchange = describe_exchange(config, num_ranks)
    print_to_pipe(explain.describe_run(recipe, config, parts, changes, exchange))


def describe_exchange(config: Config, num_ranks: int) -> str:
    """Returns what each rank sends of its gradients. Imports TensorFlow.

    Args:
        config: The settings of the run, which compresses gradients. Without --data_dir
            its classes are not known, and those of CIFAR-10 or ImageNet are taken.
        num_ranks: The number of ranks.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    startup.import_tensorflow()
    from resnet.train_state import build_model

    if not FLAGS.data_dir:
        num_classes = 10 if config.model in CIFAR_MODELS else 1000
        config = dataclasses.replace(config, num_classes=num_classes)
    # The precision that "auto" stands for makes no difference here.
    model = build_model(dataclasses.replace(config, precision="float32"))
    shapes = [one.shape for one in model.trainable_variables]
    text = exchange_plan.describe(config, shapes, num_ranks)
    return f"with {config.num_classes:,} classes, {text}"


def resolve_settings(
    contents: manifest.Manifest, communicator: Communicator
) -> tuple[Config, list[str], RunLock | None]:
    """Returns the settings of the run, the splits that it reads, and rank 0's lock.

    Rank 0 creates and locks the model directory. If the directory holds a run, the
    settings must be those of that run; settings that an earlier version derived from
    the same command are accepted too. All ranks get rank 0's `MEASURED_SETTINGS`.

    Args:
        contents: The manifest of the data set.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if a setting is wrong, or if the model directory
            can't be used.
    """
    lock = None
    with communicator.collective_errors():
        split = contents.splits["train"]
        meanings = earlier.meanings(
            *(FLAGS.recipe, train_flags.overrides()),
            *(split.num_examples, contents.class_names),
        )
        config = meanings[0]
        number, measured = 0, dict[str, str]()
        splits = splits_to_read(config, contents)
        check_ranks(config, num_parts(config, communicator.num_ranks))
        if FLAGS.require_mixed:
            manifest.check_mixing(split)
        if communicator.rank == 0:
            end_of_training.check(config)
            run_folder.make(config.model_dir)
            lock = take_lock(pathlib.Path(config.model_dir))
            failure_file.remove(pathlib.Path(config.model_dir))
            number, measured = match_saved_run(meanings)
    number, measured = communicator.broadcast((number, measured))
    config = dataclasses.replace(meanings[number], **measured)
    return config, splits, lock


def num_parts(config: Config, num_ranks: int) -> int:
    """Returns the number of parts of a global batch: of the ranks, or of the workers.

    Raises:
        UserError: If there is no worker.
    """
    if config.is_async:
        return async_roles.num_workers(num_ranks, config.num_ps)
    return num_ranks


def splits_to_read(config: Config, contents: manifest.Manifest) -> list[str]:
    """Returns the splits of the data set that the run needs.

    Raises:
        UserError: If --eval_every is set, but there is no validation split.
    """
    if config.mode == "train":
        return ["train"]
    if "validation" in contents.splits:
        return ["train", "validation"]
    if config.eval_every:
        raise UserError(
            "--eval_every needs a validation split, and this data set has none. Leave"
            " the flag out, or convert the validation images too."
        )
    return ["train"]


def take_lock(model_dir: pathlib.Path) -> RunLock:
    """Locks the folder until the process ends; returns the lock.

    Raises:
        UserError: If the folder can't be locked. If another job holds the lock,
            `failure.json` says so.
    """
    try:
        lock = RunLock(model_dir)
    except Locked as error:
        failure_file.write(model_dir, str(error), is_locked=True)
        raise
    leaving.register(lock.release)
    return lock


def match_saved_run(meanings: Sequence[Config]) -> tuple[int, dict[str, str]]:
    """Returns the index of the saved run's settings in `meanings`, and its choices.

    The choices are its values of those `MEASURED_SETTINGS` that are "auto" now. A run
    without a checkpoint doesn't count: its files are overwritten. Without a saved run
    the index is 0.

    Args:
        meanings: The possible settings of the command: those of the present recipes,
            then those of earlier versions (`earlier.meanings`).

    Raises:
        UserError: If the folder holds a run with other settings, naming the
            differences; or if a new run has initial weights that don't exist.
    """
    config = meanings[0]
    model_dir = pathlib.Path(config.model_dir)
    if not step_dirs.saved_steps(model_dir):
        if config.initial_weights:
            weight_files.kind_of(pathlib.Path(config.initial_weights))
        return 0, {}
    old = retention.newest_settings(model_dir)
    if old is None and (model_dir / CONFIG_FILE).exists():
        old = load_config(config.model_dir)
    if old is None:
        return 0, {}
    measured = {
        name: getattr(old, name)
        for name in MEASURED_SETTINGS
        if getattr(config, name) == "auto"
    }
    candidates = [dataclasses.replace(meaning, **measured) for meaning in meanings]
    nearest = min(candidates, key=lambda new: len(differences(old, new)))
    refuse_other(old, nearest)
    if changed := differences(old, candidates[0]):
        logging.info(
            "%s has changed since this run was begun (%s); the run keeps the settings"
            " that it was begun with.",
            *(config.recipe, "; ".join(changed)),
        )
    return candidates.index(nearest), measured


def write_settings(config: Config, parts: int, communicator: Communicator) -> None:
    """Writes `config.json` on rank 0, and logs how the run deviates from its recipe.

    Args:
        config: The settings of the run.
        parts: The number of parts of a global batch.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if the model directory is not writable.
    """
    with communicator.collective_errors():
        if communicator.rank == 0:
            try:
                save_config(config)
            except OSError as error:
                raise run_folder.not_writable(error) from error
    recipe, overrides = json_file.get(FLAGS.recipe), train_flags.overrides()
    for change in recipe_changes.describe_changes(recipe, overrides, config, parts):
        logging.info("Changed from the recipe: %s.", change)


def train(
    config: Config,
    shards: Mapping[str, "ExampleShard"],
    threads: Threads,
    communicator: Communicator,
    signals: StopSignals,
    lock: RunLock | None,
) -> None:
    """Trains synchronously, and writes `failure.json` if the run fails on all ranks.

    Args:
        config: The settings of the run.
        shards: The part of each split that this rank reads, by the split's name.
        threads: The threads of this rank.
        communicator: The ranks.
        signals: The stop requests of this rank.
        lock: The lock of the run's folder on rank 0; None on other ranks.

    Raises:
        AgreedFailure: On all ranks, if the run fails, such as by a non-finite loss.
    """
    from resnet import train as training  # Imports TensorFlow.

    with failures_recorded(config, communicator):
        training.train_and_evaluate(
            config,
            shards["train"],
            shards.get("validation"),
            communicator,
            config.num_parallel_calls or len(threads.cpus),
            signals,
            lock,
        )
        end_of_training.export(config, communicator)


@contextlib.contextmanager
def failures_recorded(config: Config, communicator: Communicator) -> Iterator[None]:
    """Writes `failure.json` on rank 0 if the block raises an AgreedFailure."""
    try:
        yield
    except AgreedFailure as error:
        if communicator.rank == 0:
            failure_file.write(pathlib.Path(config.model_dir), str(error))
        raise


def run(signals: StopSignals | None = None) -> None:
    """Runs the program and exits.

    Args:
        signals: The handlers of stop requests, if they are installed already; None
            installs them, in a child process if MPICH's mpirun has started this one.
    """
    signals = signals or StopSignals(launcher_death.fork_rank())
    if asks_for_evaluation(sys.argv):
        sys.argv.append("--watch")
        commands.evaluate()  # Knows the flags of this program, too.
        return
    program.run(functools.partial(main, signals=signals))


def asks_for_evaluation(argv: Sequence[str]) -> bool:
    """Returns whether a command line asks for evaluations instead of a training.

    As in the TPU program, these are of each checkpoint of a run as it appears.
    """
    given = copy.deepcopy(FLAGS)
    try:
        given(list(argv), known_only=True)
    except flags.Error:
        return False  # `main` says what is wrong.
    return given.mode == "eval" and not (given.explain or given.list_recipes)


if __name__ == "__main__":
    run(SIGNALS)
