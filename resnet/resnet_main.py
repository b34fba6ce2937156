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
import dataclasses
import functools
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

if not __package__:  # Run by its path: the packages are beside this folder.
    sys.path[0] = os.path.dirname(sys.path[0])

from resnet.base import program as base_program
from resnet.runtime import launcher_death
from resnet.runtime.preemption import START_AGAIN, Preempted, StopSignals

if __name__ == "__main__":  # Before the other imports, which take half a second.
    SIGNALS = StopSignals(launcher_death.fork_rank())

from absl import logging

from data_prep.records import class_mixing, manifest
from resnet.base import cli, commands
from resnet.base.cli import CommandLine
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.config import class_weights, command_line, explain, recipe_file
from resnet.config.command_line import JobSettings, TrainFlags
from resnet.config.config import Config, Derived, save_config
from resnet.config.recipe import Recipe
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.config.rules import check_start
from resnet.data import record_sets
from resnet.distributed.communicator import AgreedError, AgreedFailure, Communicator
from resnet.export.end_of_training import check as check_export
from resnet.export.end_of_training import export, is_exported
from resnet.hardware.placement import ProcessInfo
from resnet.report import refresh
from resnet.runtime import divergence, host_warnings, program, startup
from resnet.runtime.divergence import Disagreement
from resnet.runtime.job import Job, PreparedRun
from resnet.runtime.run_lock import RunLock
from resnet.selftest import job as self_test
from resnet.training import run_folder, run_plan
from resnet.watchdog import history

FLAGS = command_line.TRAINING


def main(argv: Sequence[str], signals: StopSignals | None = None) -> int:
    """Trains as the command line says, in a child process under MPICH's mpirun."""
    signals = signals or StopSignals(launcher_death.fork_rank())
    if asks_for_evaluation(argv):
        return base_program.call(
            "eval.resnet_eval", [*argv, "--watch"], more_flags=FLAGS
        )
    return program.run(functools.partial(train, signals=signals), argv)


def asks_for_evaluation(argv: Sequence[str]) -> bool:
    """Returns whether a command line asks for evaluations of a run's checkpoints."""
    words = [word.lstrip("-") for word in argv[1:] if word.startswith("-")]
    only_prints = {"explain", "list_recipes", "help", "helpfull"} & set(words)
    pairs = itertools.pairwise(argv)
    is_asked = "mode=eval" in words or ("--mode", "eval") in pairs
    return is_asked and not only_prints


def train(
    argv: Sequence[str],
    process: ProcessInfo,
    communicator: Communicator,
    signals: StopSignals,
) -> None:
    """Trains as one of the ranks of a job."""
    with communicator.collective_errors():
        line = cli.parse(argv, __doc__, FLAGS)
        flags = line.of(TrainFlags)
        line.of(JobSettings)  # It refuses TPUs.
        recipe, overrides = recipe_file.get(flags.recipe), command_line.overrides(line)
        if flags.list_recipes:
            print_result(explain.list_recipes(list(RECIPES.values())))
            return
        if flags.explain:
            run_plan.print_plan(
                recipe,
                overrides,
                line.values["data_dir"],
                max(communicator.num_ranks, flags.num_ranks),
                flags.explain_plot if communicator.rank == 0 else "",
                is_chosen="recipe" in line.given or communicator.rank > 0,
            )
            return
        check_flags(line)
    prepared = prepare(line, process, communicator, signals)
    recipe = run_plan.fitted(recipe, prepared.record_set.manifest)
    save_settings = functools.partial(write_settings, recipe, overrides)
    with recorded(prepared.config, communicator):
        if has_ended(prepared, communicator):
            return
        if flags.self_test:
            self_test.check(process, communicator)
        if prepared.config.is_async:
            from resnet.training.parameter_servers import job as async_job

            end = functools.partial(finish, prepared.record_set.manifest)
            async_job.train(
                prepared, process, communicator, signals, save_settings, end
            )
        else:
            train_synchronously(prepared, process, communicator, signals, save_settings)


def prepare(
    line: CommandLine,
    process: ProcessInfo,
    communicator: Communicator,
    signals: StopSignals,
) -> PreparedRun:
    """Joins the job, and settles what the ranks must agree on before they compute."""
    flags, settings = line.of(TrainFlags), line.of(JobSettings)
    startup.join_job(
        process,
        communicator,
        settings.stall_seconds,
        line.values["model_dir"],
        outlives_launcher=signals.can_outlive_launcher,
    )
    signals.outlive_launcher(communicator.await_end_of_watchdog)
    record_set = record_sets.open_record_set(
        line.values["data_dir"], "train", process, communicator
    )
    config, splits, lock = resolve_settings(
        recipe_file.get(flags.recipe),
        command_line.overrides(line),
        flags.require_mixed,
        record_set,
        communicator,
    )
    if communicator.rank == 0 and "recipe" not in line.given:
        run_plan.advise_recipe(record_set.manifest)
    shared = dataclasses.replace(config, data_dir="")  # It may differ between hosts.
    startup.check_same_settings(
        "data set and settings", record_set, shared, communicator
    )
    shards = startup.check_shards(
        record_set, splits, config.shard_by, communicator, config.on_bad_record
    )
    if communicator.any_rank(signals.seen):
        raise Preempted("stopped before the training began", START_AGAIN)
    return PreparedRun(config, settings, record_set, shards, lock)


def has_ended(prepared: PreparedRun, communicator: Communicator) -> bool:
    """Returns whether a run has nothing left to do, and says so, before TensorFlow."""
    config, text = prepared.config, ""
    with communicator.collective_errors():
        if communicator.rank == 0:
            is_evaluated = "validation" in prepared.shards_of_ranks
            text = run_folder.describe_end(config, is_evaluated)
            if text and config.export_dir and not is_exported(config):
                text = ""
    if text:
        print(text, file=sys.stderr)
        suggest_commands(prepared.record_set.manifest, config)
    return communicator.broadcast(bool(text))


def train_synchronously(
    prepared: PreparedRun,
    process: ProcessInfo,
    communicator: Communicator,
    signals: StopSignals,
    save_settings: Callable[[Config, int, Communicator], None],
) -> None:
    """Starts TensorFlow on the cores of this rank, and trains with the other ranks."""
    with host_warnings.gathered(communicator):
        threads = startup.start_on_own_cores(process, communicator, prepared.settings)
        from resnet.exchange import choice as exchange_choice
        from resnet.runtime import precision
        from resnet.training import loop

        shards = startup.open_shards(
            prepared.record_set, prepared.shards_of_ranks, communicator
        )
        config = dataclasses.replace(
            prepared.config,
            precision=precision.choose(prepared.config.precision, communicator),
            exchange=exchange_choice.choose(prepared.config, communicator),
        )
    save_settings(config, communicator.num_ranks, communicator)
    run = prepared.opened(config, shards)
    if loop.train_and_evaluate(run, Job(communicator, threads, signals)):
        finish(prepared.record_set.manifest, config, communicator)


def finish(
    contents: manifest.Manifest, config: Config, communicator: Communicator
) -> None:
    """Exports the network of a whole training, and says what can be done with it."""
    export(config, communicator)
    if communicator.rank == 0:
        suggest_commands(contents, config)


def suggest_commands(contents: manifest.Manifest, config: Config) -> None:
    """Logs the commands that evaluate, report on and predict with a trained network."""
    image = contents.example_image()
    following = commands.of_run(config.data_dir, config.model_dir, image)
    if manifest.VALIDATION not in contents.splits:
        del following["Evaluate"]
    for title, command in following.items():
        logging.info("%-9s %s", f"{title}:", command)


def check_flags(line: CommandLine) -> None:
    """Refuses folders that don't fit, and flags that only --explain uses."""
    command_line.check_folders(line.values["data_dir"], line.values["model_dir"])
    if "num_ranks" in line.given:
        raise UserError(
            "--num_ranks is for --explain; mpirun -np says how many ranks train."
        )
    if "explain_plot" in line.given:
        raise UserError("--explain_plot is for --explain. Add that, or leave it out.")


def resolve_settings(
    recipe: Recipe,
    overrides: Mapping[str, object],
    require_mixed: bool,
    record_set: manifest.RecordSet,
    communicator: Communicator,
) -> tuple[Config, list[str], RunLock | None]:
    """Returns the settings of the run, the splits that it reads, and rank 0's lock.

    Rank 0 locks the folder of the run; a run in it must have the same settings.
    """
    lock = None
    with communicator.collective_errors():
        contents = record_set.manifest
        split = contents.splits["train"]
        recipe = run_plan.fitted(recipe, contents)
        classes = contents.class_names, contents.multi_label
        config = dataclasses.replace(
            resolve(recipe, overrides, split.num_examples, *classes),
            median_side=contents.median_side,
            depth_window=contents.depth_window,
            **record_sets.digests(record_set),
        )
        weights = class_weights.resolve(
            config.class_weights, config.class_names, split.label_counts
        )
        config = dataclasses.replace(config, class_weight_values=weights)
        is_first = communicator.rank == 0
        splits = run_plan.splits_to_read(config, contents, says_what_lacks=is_first)
        num_parts = explain.num_parts(config, communicator.num_ranks)
        check_start(recipe, config, num_parts)
        record_sets.check_num_classes(config.data_dir, split)
        if require_mixed and not (contents.images_dir and config.shard_by == "example"):
            class_mixing.check_mixing(split)
        measured: dict[str, Any] = {}
        if is_first:
            check_export(config)
            lock, measured = run_folder.prepare(config)
            log_weights(config, split.label_counts)
    measured = communicator.broadcast(measured)
    return dataclasses.replace(config, **measured), splits, lock


def log_weights(config: Config, label_counts: Sequence[int]) -> None:
    """Logs by what the classes are weighted, in the loss and in the sampling."""
    names, weights = config.class_names, config.class_weight_values
    if weights:
        text = class_weights.describe(weights, names)
        logging.info("The weights of classes in the loss are %s.", text)
    if config.sampling != "natural":  # An image is used as often as it would weigh.
        uses = class_weights.resolve(config.sampling, names, label_counts)
        text = class_weights.describe(uses, names)
        logging.info("An epoch uses each image of a class %s times.", text)


def write_settings(
    recipe: Recipe,
    overrides: Mapping[str, object],
    config: Config,
    num_parts: int,
    communicator: Communicator,
) -> None:
    """Writes `config.json` on rank 0, and logs how the run deviates from its recipe."""
    with communicator.collective_errors():
        if communicator.rank == 0:
            try:
                save_config(config)
            except OSError as error:
                raise run_folder.not_writable(error) from error
    derived = Derived(config, num_parts)
    for change in explain.describe_changes(recipe, overrides, derived):
        logging.info("Changed from the recipe: %s.", change)
    if communicator.rank == 0:
        for sentence in explain.warnings(derived):
            logging.warning("%s.", sentence)


@contextlib.contextmanager
def recorded(config: Config, communicator: Communicator) -> Iterator[None]:
    """Records in the files and the report of the run how the block ends."""
    model_dir, is_writer = pathlib.Path(config.model_dir), communicator.rank == 0
    with refresh.kept_fresh(config, is_writer):
        try:
            yield
        except Preempted as error:
            if is_writer:
                history.append(model_dir, "end", step=error.step, reason=str(error))
                if error.hosts:
                    history.write_failure(model_dir, str(error), hosts=error.hosts)
            raise
        except AgreedFailure as error:
            if is_writer:
                history.write_failure(model_dir, str(error), hosts=error.hosts)
            if is_writer and isinstance(error, Disagreement):
                history.append(model_dir, divergence.DISAGREEMENT, **error.facts)
            raise
        except AgreedError as error:
            if is_writer and model_dir.is_dir():  # It may be what was moved.
                history.write_failure(model_dir, str(error))
            raise
        finally:
            if is_writer:
                history.remove_refusal(model_dir)


if __name__ == "__main__":
    sys.exit(base_program.run(functools.partial(main, signals=SIGNALS)))
