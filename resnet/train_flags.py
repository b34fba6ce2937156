"""The flags of the training program, and the settings that they override."""

from typing import Any

from absl import flags

from resnet import setting_flags, shared_flags
from resnet.base import settings
from resnet.base.errors import UserError
from resnet.config import resolve
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.config.phases import PhaseSettings
from resnet.config.recipe import AsyncSettings, TrainingSettings
from resnet.config.recipes import imagenet
from resnet.config.resolve import ScheduleOverrides

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "recipe",
    imagenet.TPU_90EP_24K.name,
    "The recipe that supplies the values of flags that are not given: a name that"
    " --list_recipes prints, or a JSON file.",
)
flags.DEFINE_bool("list_recipes", False, "Print a table of the recipes, and exit.")
flags.DEFINE_bool(
    "explain", False, "Print the plan of the run without training, and exit."
)
flags.DEFINE_string(
    "explain_plot",
    None,
    "With --explain, the file for a figure of the learning rate, such as plan.png.",
)
flags.DEFINE_integer(
    "num_ranks",
    1,
    "With --explain, the number of ranks of the run that is planned.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "resnet_depth",
    None,
    "The depth of a ResNet, another form of --model: 50 means --model=resnet50.",
)
flags.DEFINE_bool(
    "require_mixed",
    True,
    "Whether to refuse a data set whose classes are not shuffled over its files.",
)
# Without defaults: the recipe supplies the values of flags that are not given.
for kind in (
    ScheduleOverrides,
    AsyncSettings,
    CompressionSettings,
    TrainingSettings,
    PhaseSettings,
):
    setting_flags.define(kind)
setting_flags.define(Config, without=shared_flags.SETTINGS, has_defaults=True)


def check() -> None:
    """Refuses the flags that only --explain uses; to be called without --explain.

    Raises:
        UserError: If one of them is given.
    """
    if FLAGS["num_ranks"].present:
        raise UserError(
            "--num_ranks is for --explain; mpirun -np says how many ranks train."
        )
    if FLAGS.explain_plot:
        raise UserError("--explain_plot is for --explain. Add that, or leave it out.")


def overrides() -> dict[str, Any]:
    """Returns the settings that the flags override, by their names in `Config`."""
    declared = settings.declarations(*resolve.OVERRIDABLE)
    values = {
        name: FLAGS[settings.flag_name(name, declaration)].value
        for name, declaration in declared.items()
        if declaration.flag is not None
    }
    values["model"] = model_name()
    if values["precision"] == "bfloat16":
        values["precision"] = "bf16"
    return {name: value for name, value in values.items() if value is not None}


def model_name() -> str | None:
    """Returns the network that --model or --resnet_depth names; None without them.

    Raises:
        UserError: If the two flags name different networks.
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
