"""Flags of training, and the settings that they name; read by the program only."""

import dataclasses
from typing import Any

from absl import flags

from data_prep.errors import UserError
from resnet import imagenet_recipes, scaling, setting_bounds
from resnet.config import Config
from resnet.models import names

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "recipe",
    imagenet_recipes.TPU_90EP_24K.name,
    "Where unset flags come from: a name of --list_recipes, or a recipe file.",
)
flags.DEFINE_bool("list_recipes", False, "Print the recipes, and end.")
flags.DEFINE_bool("explain", False, "Print what the run would do, and end.")
flags.DEFINE_string(
    "explain_plot", None, "With --explain: file for a plot, such as plan.png."
)
flags.DEFINE_integer("num_ranks", 1, "With --explain: ranks of the run.", lower_bound=1)
flags.DEFINE_string("model", None, f"Network: {', '.join(names.MODELS)}.")
flags.DEFINE_integer(
    "resnet_depth", None, "Another way to say --model: 50 is resnet50."
)
flags.DEFINE_string("mode", Config.mode, f"{' or '.join(setting_bounds.MODES)}.")
flags.DEFINE_integer("train_batch_size", None, "Images in one step, over all ranks.")
flags.DEFINE_integer(
    "accumulation_steps",
    Config.accumulation_steps,
    "Parts that each rank computes its share of a step in, one after the other.",
)
flags.DEFINE_integer("train_steps", None, "Steps to train.")
flags.DEFINE_float("train_epochs", None, "Epochs to train, instead of --train_steps.")
flags.DEFINE_float(
    "base_learning_rate",
    None,
    "Of step 0; if the recipe's isn't 0, the peak is changed in proportion.",
)
flags.DEFINE_float(
    "peak_learning_rate", None, "After the warm-up; unset, it scales with the batch."
)
flags.DEFINE_integer("warmup_steps", None, "Length of the warm-up in steps.")
flags.DEFINE_float("warmup_epochs", None, "The same in epochs.")
flags.DEFINE_string("optimizer", None, f"{' or '.join(setting_bounds.OPTIMIZERS)}.")
flags.DEFINE_float("momentum", None, "Of the velocity.")
flags.DEFINE_float(
    "weight_decay", None, "On all but batch normalization; with LARS, nor on biases."
)
flags.DEFINE_float("clip_norm", None, "Largest norm of all gradients; 0: no limit.")
flags.DEFINE_float(
    "ema_decay", None, "Of a moving average of the weights, evaluated too; 0: none."
)
flags.DEFINE_float("bn_momentum", None, "Decay of batch normalization's averages.")
flags.DEFINE_float("label_smoothing", None, "Share spread evenly over all classes.")
flags.DEFINE_float("mixup", None, "Alpha of mixup; 0: none.")
flags.DEFINE_float("cutmix", None, "Alpha of CutMix; 0: none.")
flags.DEFINE_float(
    "random_augment", None, "Magnitude of RandAugment, 0 to 10; 0: none."
)
flags.DEFINE_integer("image_size", None, "Side of the images in pixels.")
flags.DEFINE_string("augmentation", None, f"{', '.join(setting_bounds.AUGMENTATIONS)}.")
flags.DEFINE_string(
    "eval_crop",
    None,
    f"How evaluation takes the middle: {' or '.join(setting_bounds.EVAL_CROPS)}.",
)
flags.DEFINE_string(
    "precision",
    Config.precision,
    "float32, bf16, or auto: the faster one, by measurement.",
)
flags.DEFINE_integer(
    "seed", Config.seed, "Of weights, order of the examples and augmentation."
)
flags.DEFINE_string(
    "eval_every",
    Config.eval_every,
    "Evaluate every 500 steps or 4 epochs; unset: at the end.",
)
flags.DEFINE_float(
    "stop_at_top1",
    Config.stop_at_top1,
    "End when an evaluation has found such a share of top-1; 0: don't.",
)
flags.DEFINE_string(
    "initial_weights",
    Config.initial_weights,
    "Begin with the weights of such a run's folder, or of one of its checkpoints.",
)
flags.DEFINE_string(
    "first_phase", Config.first_phase, "Begin with this phase of the recipe."
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
    "Newest checkpoints that are kept, beside the best and the ends of phases.",
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


def check() -> None:
    """Refuses flags of --explain without it.

    Raises:
        UserError: With a sentence for the first of them.
    """
    if FLAGS["num_ranks"].present:
        raise UserError(
            "--num_ranks is for --explain; mpirun -np says how many ranks train."
        )
    if FLAGS.explain_plot:
        raise UserError("--explain_plot is for --explain. Add that, or leave it out.")


def given_settings() -> dict[str, Any]:
    """Returns the settings that flags name, by their names in `Config`."""
    names = (*scaling.SETTINGS, *(field.name for field in dataclasses.fields(Config)))
    given = {name: FLAGS[name].value for name in names if name in FLAGS}
    given.update(
        model=model_name(),
        global_batch_size=FLAGS.train_batch_size,
        batch_norm_decay=FLAGS.bn_momentum,
        precision={"bfloat16": "bf16"}.get(FLAGS.precision, FLAGS.precision),
    )
    del given["recipe"]
    return {name: value for name, value in given.items() if value is not None}


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
