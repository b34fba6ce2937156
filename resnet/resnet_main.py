r"""Trains an image classifier in one process, or on all ranks that mpirun starts.

python resnet/resnet_main.py --recipe=digits \
    --data_dir=RECORDS --model_dir=MODEL
mpirun -np 2 python resnet/resnet_main.py --recipe=imagenette \
    --train_epochs=3 --data_dir=RECORDS --model_dir=MODEL
python resnet/resnet_main.py --explain --recipe=imagenette --num_ranks=2

Flags that are not given take the recipe's values. Rerun the same command to
resume an interrupted run.
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

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from resnet.runtime import launcher_death
from resnet.runtime.preemption import Preempted, StopSignals

if __name__ == "__main__":  # Before the other imports, which take half a second.
    SIGNALS = StopSignals(launcher_death.fork_rank())

from absl import flags, logging

from data_prep.records import class_mixing, manifest
from resnet import commands, flag_topics, shared_flags, train_flags
from resnet.base.errors import parse_flags, print_to_pipe
from resnet.checkpoint import run_folder
from resnet.config import explain, recipe_file
from resnet.config.config import Config, save_config
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.config.rules import check_ranks
from resnet.data import record_sets
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.export import end_of_training
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.report import refresh
from resnet.runtime import host_warnings, process_exit, program, startup
from resnet.runtime.job import Job, Run
from resnet.runtime.run_lock import RunLock
from resnet.training import run_plan, saved_run
from resnet.training.parameter_servers import roles as async_roles
from resnet.watchdog import failure_file, history

if TYPE_CHECKING:  # It imports TensorFlow.
    from resnet.data.example_shard import ExampleShard

FLAGS = flags.FLAGS


def main(
    argv: Sequence[str],
    process: ProcessInfo,
    communicator: Communicator,
    signals: StopSignals,
) -> None:
    """Trains as the flags say."""
    with communicator.collective_errors():
        parse_flags(argv, __doc__, flag_topics.TRAINING)
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
    if communicator.any_rank(signals.seen):
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
    from resnet.training.parameter_servers import job

    workers = explain.num_parts(config, communicator.num_ranks)
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
    num_cpus = agree_for_workers(role, record_set, threads, communicator)
    if communicator.rank == 0 and "TF_CPP_MIN_LOG_LEVEL" not in given:
        # A lost worker isn't an error: its rank tells of it in a sentence.
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

    def coordinate(
        endpoints: Sequence[job.Endpoint],
        alone: Communicator,
        job_signals: job.JobSignals,
    ) -> None:
        startup.start_tensorflow(alone)
        process_exit.require_at_once()
        from resnet.runtime import precision
        from resnet.training.parameter_servers import cluster
        from resnet.training.parameter_servers.training import AsyncTraining

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
            config.num_parallel_calls or num_cpus,
            job_signals,
            lock,
            FLAGS.stall_seconds,
        )
        communicator.report_status("coordinating the workers", is_timed=False)
        with failures_recorded(settings, communicator):
            if training.run():
                end_of_training.export(settings, alone)

    job.run(
        *(config.num_ps, threads, communicator, FLAGS.stall_seconds, signals),
        coordinate,
    )


def agree_for_workers(
    role: async_roles.Role,
    record_set: manifest.RecordSet,
    threads: Threads,
    communicator: Communicator,
) -> int:
    """Returns the fewest processors of a worker, the same on all ranks.

    Rank 0 tells the workers what to read, and how many images to decode at a time.

    Args:
        role: The role of this rank.
        record_set: The data set of this rank.
        threads: The threads of this rank.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if the records are not in the same folder.
    """
    communicator.assert_equal_across_ranks(
        "folder of records", str(record_set.records_dir)
    )
    of_ranks = communicator.allgather((role.job, len(threads.cpus)))
    return min(count for job, count in of_ranks if job == async_roles.WORKER)


def print_plan(communicator: Communicator) -> None:
    """Prints the recipes, or what the run would do, as the flags say.

    Raises:
        UserError: If the settings of the run are wrong.
    """
    if FLAGS.list_recipes:
        print_to_pipe(explain.list_recipes(list(RECIPES.values())))
        return
    shared_flags.check_values()
    run_plan.print_plan(
        recipe_file.get(FLAGS.recipe),
        train_flags.overrides(),
        FLAGS.data_dir,
        max(communicator.num_ranks, FLAGS.num_ranks),
        FLAGS.explain_plot if communicator.rank == 0 else "",
    )


def resolve_settings(
    contents: manifest.Manifest, communicator: Communicator
) -> tuple[Config, list[str], RunLock | None]:
    """Returns the settings of the run, the splits that it reads, and rank 0's lock.

    Rank 0 creates and locks the model directory. If the directory holds a run, the
    settings must be those of that run. All ranks get rank 0's measured settings.

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
        config = resolve(
            recipe_file.get(FLAGS.recipe),
            train_flags.overrides(),
            split.num_examples,
            contents.class_names,
        )
        measured = dict[str, str]()
        splits = run_plan.splits_to_read(config, contents)
        check_ranks(config, explain.num_parts(config, communicator.num_ranks))
        if FLAGS.require_mixed:
            class_mixing.check_mixing(split)
        if communicator.rank == 0:
            end_of_training.check(config)
            run_folder.make(config.model_dir)
            lock = saved_run.take_lock(pathlib.Path(config.model_dir))
            failure_file.remove(pathlib.Path(config.model_dir))
            measured = saved_run.match_saved_run(config)
            saved_run.set_aside_unsaved(pathlib.Path(config.model_dir))
    config = dataclasses.replace(config, **communicator.broadcast(measured))
    return config, splits, lock


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
    recipe, overrides = recipe_file.get(FLAGS.recipe), train_flags.overrides()
    derived = explain.Derived(config, parts)
    for change in explain.describe_changes(recipe, overrides, derived):
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
    from resnet.training import loop as training  # Imports TensorFlow.

    with failures_recorded(config, communicator):
        run = Run(config, shards["train"], shards.get("validation"), lock)
        job = Job(communicator, threads, signals)
        is_complete = training.train_and_evaluate(run, job)
        if is_complete:
            end_of_training.export(config, communicator)


@contextlib.contextmanager
def failures_recorded(config: Config, communicator: Communicator) -> Iterator[None]:
    """Writes `failure.json` on rank 0 if the block raises an AgreedFailure.

    The history of the run has the failure too, or that a stop request ended it. The
    report of the run, if the settings ask for it, has both.
    """
    with refresh.kept_fresh(config, is_writer=communicator.rank == 0):
        try:
            yield
        except Preempted as error:
            if communicator.rank == 0:
                history.append(pathlib.Path(config.model_dir), "end", reason=str(error))
            raise
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
