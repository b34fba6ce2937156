"""Trains a ResNet on one process, or on all ranks that mpirun starts.

mpirun -np 2 python resnet/resnet_main.py --recipe=imagenette --data_dir=D --model_dir=M
"""

import atexit
import dataclasses
import functools
import pathlib
import sys
import tempfile
from collections.abc import Sequence

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.stop_signals import Preempted, StopSignals

if __name__ == "__main__":  # Before the other imports, which take half a second.
    SIGNALS = StopSignals()

from absl import flags, logging

from data_prep.errors import UserError, parse_flags
from data_prep.records import manifest
from resnet import (
    checkpoint_folders,
    explain,
    failure_file,
    installation,
    program,
    recipe_changes,
    recipe_file,
    recipes,
    shared_flags,
    train_flags,
)
from resnet import config as configs
from resnet.config import Config
from resnet.data import record_sets
from resnet.distributed import AgreedFailure, Communicator
from resnet.placement import Place
from resnet.run_lock import Locked, RunLock

FLAGS = flags.FLAGS


def main(
    argv: Sequence[str],
    place: Place,
    communicator: Communicator,
    signals: StopSignals,
) -> None:
    """Trains as the flags say."""
    with communicator.together():
        parse_flags(argv)
        if FLAGS.list_recipes or FLAGS.explain:
            tell(communicator)
            return
        shared_flags.check()
        train_flags.check()
    communicator.start_watchdog(place, FLAGS.stall_seconds, FLAGS.model_dir)
    for what, value in installation.describe().items():
        communicator.require_same(what, value)
    record_set = record_sets.open_record_set(
        FLAGS.data_dir, "train", place, communicator
    )
    contents = record_set.manifest
    with communicator.together():
        recipe, given = recipe_file.get(FLAGS.recipe), train_flags.given_settings()
        split = contents.splits["train"]
        config = configs.resolve(
            recipe, given, split.num_examples, contents.class_names
        )
        splits = [contents.splits[name] for name in splits_to_read(config, contents)]
        configs.check_ranks(config, communicator.num_ranks)
        if FLAGS.require_mixed:
            manifest.check_mixing(split)
        if communicator.rank == 0:
            make_model_dir(config.model_dir)
            take_lock(pathlib.Path(config.model_dir))
            failure_file.remove(pathlib.Path(config.model_dir))
            config = join_old_run(config)
    communicator.require_same(
        "data set and settings",
        repr(
            (
                dataclasses.replace(contents, source={}),
                dataclasses.replace(config, data_dir="", precision=""),
            )
        ),
    )
    shards = {
        split.name: record_sets.check_split(
            record_set, split, config.shard_by, communicator
        )
        for split in splits
    }
    config = dataclasses.replace(
        config, precision=communicator.broadcast(config.precision)
    )
    threads = program.settle_placement(
        place,
        communicator,
        FLAGS.num_intra_threads,
        FLAGS.num_inter_threads,
        FLAGS.kmp_blocktime,
    )

    if any(communicator.gather(bool(signals.seen))):
        raise Preempted("stopped before the training began")
    program.start_tensorflow(communicator)  # Now that its environment is settled.
    from resnet import precision, train
    from resnet.data import example_shard, record_files

    with communicator.together():
        shares = {
            name: example_shard.shard_of_rank(
                record_files.open_split(record_set, name),
                shards_of_ranks,
                communicator.rank,
            )
            for name, shards_of_ranks in shards.items()
        }
    config = dataclasses.replace(
        config, precision=precision.choose(config.precision, communicator)
    )
    with communicator.together():
        if communicator.rank == 0:
            try:
                configs.save(config)
            except OSError as error:
                raise UserError(
                    f"--model_dir must be a folder that can be written to: {error}"
                ) from error
    for change in recipe_changes.of_run(recipe, given, config, communicator.num_ranks):
        logging.info("Changed from the recipe: %s.", change)
    try:
        train.train_and_evaluate(
            config,
            shares["train"],
            shares.get("validation"),
            communicator,
            config.num_parallel_calls or len(threads.cpus),
            signals,
        )
    except AgreedFailure as error:
        if communicator.rank == 0:
            failure_file.write(pathlib.Path(config.model_dir), str(error))
        raise


def tell(communicator: Communicator) -> None:
    """Has rank 0 print the recipes, or what the run would do.

    Raises:
        UserError: If the run's settings are wrong.
    """
    if FLAGS.list_recipes:
        program.show(explain.list_recipes(list(recipes.RECIPES.values())))
        return
    shared_flags.check_values()
    recipe, given = recipe_file.get(FLAGS.recipe), train_flags.given_settings()
    num_examples, class_names = recipe.num_train_examples, ("of the data",)
    if FLAGS.data_dir:
        contents = manifest.load(FLAGS.data_dir, "train").manifest
        num_examples = contents.splits["train"].num_examples
    config = configs.resolve(recipe, given, num_examples, class_names)
    if FLAGS.data_dir and splits_to_read(config, contents) == ["train"]:
        config = dataclasses.replace(config, mode="train")
    if config.initial_weights:
        checkpoint_folders.require_any(pathlib.Path(config.initial_weights))
    num_ranks = max(communicator.num_ranks, FLAGS.num_ranks)
    configs.check_ranks(config, num_ranks)
    changes = recipe_changes.of_run(recipe, given, config, num_ranks)
    if FLAGS.explain_plot and communicator.rank == 0:
        from resnet import explain_plot, picture_file  # Takes a second to import.

        picture = pathlib.Path(FLAGS.explain_plot)
        picture_file.write(explain_plot.draw(config), picture, "--explain_plot")
    program.show(explain.explain(recipe, config, num_ranks, changes))


def splits_to_read(config: Config, contents: manifest.Manifest) -> list[str]:
    """Returns the splits of the data set that the run needs.

    Raises:
        UserError: If it is to evaluate at certain times and there is none to evaluate.
    """
    if config.mode == "train":
        return ["train"]
    if "validation" in contents.splits:
        return ["train", "validation"]
    if config.eval_every:
        raise UserError(
            "--eval_every needs a validation split, which this data set hasn't. Leave"
            " it out, or convert the validation pictures too."
        )
    return ["train"]


def make_model_dir(model_dir: str) -> None:
    """Makes the folder if there is none.

    Raises:
        UserError: If it can't be written to.
    """
    try:
        pathlib.Path(model_dir).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=model_dir).close()
    except OSError as error:
        raise UserError(
            f"--model_dir must be a folder that can be written to: {error}"
        ) from error


def take_lock(model_dir: pathlib.Path) -> None:
    """Takes the folder's lock until the process ends.

    Raises:
        UserError: If it can't; `failure.json` then says whether another job holds it.
    """
    try:
        atexit.register(RunLock(model_dir).release)
    except Locked as error:
        failure_file.write(model_dir, str(error), is_locked=True)
        raise


def join_old_run(config: Config) -> Config:
    """Returns the settings, a precision of "auto" replaced by that of the run there.

    A run that saved nothing is none: what it left is written anew.

    Raises:
        UserError: If the folder holds a run with other settings, naming what differs;
            or a new run is to begin with weights that aren't there.
    """
    model_dir = pathlib.Path(config.model_dir)
    if not checkpoint_folders.saved_steps(model_dir):
        if config.initial_weights:
            checkpoint_folders.require_any(pathlib.Path(config.initial_weights))
        return config
    if not (model_dir / configs.FILE).exists():
        return config
    old = configs.load(config.model_dir)
    if config.precision == "auto":
        config = dataclasses.replace(config, precision=old.precision)
    configs.refuse_other(old, config)
    return config


def run(signals: StopSignals | None = None) -> None:
    """Runs the program and exits.

    Args:
        signals: What may ask it to leave; None: those that come from now on.
    """
    program.run(functools.partial(main, signals=signals or StopSignals()))


if __name__ == "__main__":
    run(SIGNALS)
