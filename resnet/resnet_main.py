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

from absl import flags

from data_prep import manifest
from data_prep.errors import UserError, parse_flags
from resnet import (
    checkpoint_folders,
    failure_file,
    installation,
    program,
    recipes,
    shared_flags,
)
from resnet import config as configs
from resnet.config import Config
from resnet.data import record_sets
from resnet.distributed import AgreedFailure, Communicator
from resnet.placement import Place
from resnet.run_lock import Locked, RunLock

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "recipe",
    recipes.TPU_90EP_24K.name,
    f"Where unset flags come from: {', '.join(recipes.RECIPES)}.",
)
flags.DEFINE_string("model", None, f"Network: {', '.join(configs.MODELS)}.")
flags.DEFINE_integer(
    "resnet_depth", None, "Another way to say --model: 50 is resnet50."
)
flags.DEFINE_string("mode", Config.mode, f"{' or '.join(configs.MODES)}.")
flags.DEFINE_integer("train_batch_size", None, "Images in one step, over all ranks.")
flags.DEFINE_integer("train_steps", None, "Steps to train.")
flags.DEFINE_float("train_epochs", None, "Epochs to train, instead of --train_steps.")
flags.DEFINE_float(
    "base_learning_rate", None, "Learning rate for a batch of 256, and of step 0."
)
flags.DEFINE_float(
    "peak_learning_rate", None, "After the warm-up; unset, it scales with the batch."
)
flags.DEFINE_integer("warmup_steps", None, "Length of the warm-up in steps.")
flags.DEFINE_float("warmup_epochs", None, "The same in epochs.")
flags.DEFINE_float("momentum", None, "Of the velocity (Nesterov).")
flags.DEFINE_float("weight_decay", None, "On all but batch normalization.")
flags.DEFINE_float("bn_momentum", None, "Decay of batch normalization's averages.")
flags.DEFINE_float("label_smoothing", None, "Share spread evenly over all classes.")
flags.DEFINE_integer("image_size", None, "Side of the images in pixels.")
flags.DEFINE_string("augmentation", None, f"{', '.join(configs.AUGMENTATIONS)}.")
flags.DEFINE_string(
    "eval_crop",
    None,
    f"How evaluation takes the middle: {' or '.join(configs.EVAL_CROPS)}.",
)
flags.DEFINE_string(
    "precision",
    Config.precision,
    "float32, bf16, or auto: the faster one, by measurement.",
)
flags.DEFINE_integer(
    "seed", Config.seed, "Of weights, order of the examples and augmentation."
)
flags.DEFINE_integer(
    "steps_per_eval",
    Config.steps_per_eval,
    "Evaluate every so many steps; 0: only at the end.",
)
flags.DEFINE_integer(
    "log_step_count_steps",
    Config.log_step_count_steps,
    "Steps from one log line to the next.",
)
flags.DEFINE_string(
    "checkpoint_every",
    Config.checkpoint_every,
    "From one checkpoint to the next: 500 steps, 2 epochs or 10 minutes.",
)
flags.DEFINE_integer(
    "keep_checkpoints",
    Config.keep_checkpoints,
    "Newest checkpoints that are kept, beside the best.",
)
flags.DEFINE_string(
    "shard_by",
    Config.shard_by,
    "example: each rank reads from all record files; file: from those on its node.",
)
flags.DEFINE_bool(
    "require_mixed", True, "Refuse classes that aren't mixed over the record files."
)
flags.DEFINE_string(
    "record_log",
    Config.record_log,
    "Folder for a log of the records that each rank read.",
)
flags.DEFINE_integer(
    "decoded_cache_mb",
    Config.decoded_cache_mb,
    "Memory of each rank for decoded pictures, in 10**6 bytes.",
)


def main(
    argv: Sequence[str],
    place: Place,
    communicator: Communicator,
    signals: StopSignals,
) -> None:
    """Trains as the flags say."""
    with communicator.together():
        parse_flags(argv)
        shared_flags.check()
    communicator.start_guard(place, FLAGS.stall_seconds, FLAGS.model_dir)
    for what, value in installation.describe().items():
        communicator.require_same(what, value)
    record_set = record_sets.open_record_set(
        FLAGS.data_dir, "train", place, communicator
    )
    contents = record_set.manifest
    with communicator.together():
        config = resolve_config(contents)
        splits = [contents.splits[name] for name in splits_to_read(config, contents)]
        configs.check_ranks(config, communicator.num_ranks)
        if FLAGS.require_mixed:
            manifest.check_mixing(contents.splits["train"])
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
    from resnet.data import record_files, share

    with communicator.together():
        shares = {
            name: share.share_of(
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
    try:
        train.train(
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


def splits_to_read(config: Config, contents: manifest.Manifest) -> list[str]:
    """Returns the splits of the data set that the run needs."""
    if config.mode == "train_and_eval" and "validation" in contents.splits:
        return ["train", "validation"]
    return ["train"]


def resolve_config(contents: manifest.Manifest) -> Config:
    """Returns the settings that recipe, flags and data set make.

    Raises:
        UserError: If they are wrong.
    """
    given = {
        "model": model_name(),
        "global_batch_size": FLAGS.train_batch_size,
        "batch_norm_decay": FLAGS.bn_momentum,
        "precision": {"bfloat16": "bf16"}.get(FLAGS.precision, FLAGS.precision),
    }
    for name in (
        "train_steps",
        "train_epochs",
        "base_learning_rate",
        "peak_learning_rate",
        "warmup_steps",
        "warmup_epochs",
        "momentum",
        "weight_decay",
        "label_smoothing",
        "image_size",
        "augmentation",
        "seed",
        "data_dir",
        "model_dir",
        "mode",
        "eval_batch_size",
        "steps_per_eval",
        "log_step_count_steps",
        "checkpoint_every",
        "keep_checkpoints",
        "num_parallel_calls",
        "eval_crop",
        "shard_by",
        "on_bad_record",
        "record_log",
        "decoded_cache_mb",
    ):
        given[name] = FLAGS[name].value
    return configs.resolve(
        recipes.get(FLAGS.recipe),
        given,
        contents.splits["train"].num_examples,
        contents.class_names,
    )


def model_name() -> str | None:
    """Returns the network that --model or --resnet_depth name, if either does.

    Raises:
        UserError: If they name two.
    """
    if FLAGS.resnet_depth is None:
        return FLAGS.model
    name = f"resnet{FLAGS.resnet_depth}"
    if FLAGS.model not in (None, name):
        raise UserError(
            f"--model={FLAGS.model} and --resnet_depth={FLAGS.resnet_depth} name two"
            " networks. Leave one out."
        )
    return name


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
        UserError: If the folder holds a run with other settings, naming what differs.
    """
    model_dir = pathlib.Path(config.model_dir)
    if not (model_dir / configs.FILE).exists():
        return config
    if not checkpoint_folders.saved_steps(model_dir):
        return config
    old = configs.load(config.model_dir)
    if config.precision == "auto":
        config = dataclasses.replace(config, precision=old.precision)
    if different := configs.differences(old, config):
        raise UserError(
            f"{config.model_dir} holds a run with other settings"
            f" ({'; '.join(different)}). Name another --model_dir, or the settings of"
            " that run."
        )
    return config


def run(signals: StopSignals | None = None) -> None:
    """Runs the program and exits.

    Args:
        signals: What may ask it to leave; None: those that come from now on.
    """
    program.run(functools.partial(main, signals=signals or StopSignals()))


if __name__ == "__main__":
    run(SIGNALS)
