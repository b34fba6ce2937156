"""The flags of the training program, most of which other programs have too."""

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from resnet.base import cli, commands
from resnet.base.cli import CommandLine
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, COUNT_OR_ZERO, setting
from resnet.config import topics
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.config.phases import PhaseSettings
from resnet.config.recipe import AsyncSettings, TrainingSettings
from resnet.config.recipes import imagenet
from resnet.config.resolve import OVERRIDABLE, ScheduleOverrides

MOST_THREADS = 4096
_SPLITS = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """How the processes of a job run."""

    TOPIC: ClassVar[str] = topics.MACHINE

    num_intra_threads: int = setting(
        0,
        "The number of threads that share one op; 0 takes one per core of the rank.",
        bounds=(0, MOST_THREADS),
        common=True,
    )
    num_inter_threads: int = setting(
        0,
        "The number of ops that run at the same time; 0 takes one.",
        bounds=(0, MOST_THREADS),
        common=True,
    )
    stall_seconds: float = setting(
        120.0,
        "The watchdog's timeout: the seconds that a rank may be without progress or"
        " heartbeat before the job is aborted.",
        bounds=COUNT,
    )
    kmp_blocktime: int = setting(
        1,
        "The milliseconds that an OpenMP thread spins before it sleeps; without effect"
        " in stock TensorFlow.",
        bounds=COUNT_OR_ZERO,
        hidden=True,
    )
    use_tpu: bool = setting(
        False, "Must be False, since this program is for CPUs.", hidden=True
    )

    def __post_init__(self) -> None:
        """Refuses TPUs."""
        if self.use_tpu:
            raise UserError(
                "--use_tpu must be False: this program trains and evaluates on CPUs."
                " Leave the flag out."
            )


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What the training program does, apart from the settings of the run."""

    TOPIC: ClassVar[str] = topics.RECIPE

    recipe: str = setting(
        imagenet.TPU_90EP_24K.name,
        "The recipe that supplies the values of flags that are not given: a name that"
        " --list_recipes prints, or a JSON file.",
        common=True,
    )
    list_recipes: bool = setting(
        False, "Print a table of the recipes, and exit.", common=True
    )
    explain: bool = setting(
        False, "Print the plan of the run without training, and exit.", common=True
    )
    explain_plot: str = setting(
        "",
        "With --explain, the file for a figure of the learning rate, such as plan.png.",
        unset="none",
    )
    num_ranks: int = setting(
        1,
        "With --explain, the number of ranks of the run that is planned.",
        bounds=COUNT,
    )
    require_mixed: bool = setting(
        True,
        "Whether to refuse a data set whose classes are not shuffled over its files.",
        topic=topics.DATA,
    )
    self_test: bool = setting(
        False,
        "Whether each rank first tests its own cores: a core that computes otherwise"
        " than all others ends the job, and is named with its host.",
        topic=topics.MACHINE,
    )
    resnet_depth: int | None = setting(
        None,
        "The depth of a ResNet, another form of --model: 50 means --model=resnet50.",
        hidden=True,
    )


FOLDERS = cli.Flags(Config, names=("data_dir", "model_dir"))
# Flags without defaults: the recipe supplies the values of those that are not given.
_KINDS = (TrainingSettings, ScheduleOverrides, PhaseSettings, CompressionSettings)
OF_RECIPE = tuple(
    cli.Flags(kind, has_defaults=False, unset="recipe")
    for kind in (*_KINDS, AsyncSettings)
)
TRAINING: cli.Groups = (
    FOLDERS,
    TrainFlags,
    *OF_RECIPE,
    Config,
    JobSettings,
    cli.OutputSettings,
)


def overrides(line: CommandLine) -> dict[str, Any]:
    """Returns the settings that a command line overrides, by their names."""
    values = line.overrides(*OVERRIDABLE)
    depth = line.values.get("resnet_depth")
    if depth is not None:
        name = f"resnet{depth}"
        if values.get("model") not in (None, name):
            raise UserError(
                f"--model={values['model']} and --resnet_depth={depth} name two"
                " networks. Leave one out."
            )
        values["model"] = name
    return values


def check_folders(data_dir: str, model_dir: str) -> None:
    """Refuses folders that are missing, or the same."""
    for name, folder in (("data_dir", data_dir), ("model_dir", model_dir)):
        if not folder:
            text = f"--{name} is required and must name a folder. --help lists flags"
            if name == "data_dir":
                converter = commands.command("imagenet-to-tfrecords")
                text += f"; {converter} makes one of records"
            raise UserError(f"{text}.")
    real_data_dir, real_model_dir = map(os.path.realpath, (data_dir, model_dir))
    if real_data_dir == real_model_dir:
        raise UserError(
            "--data_dir and --model_dir must be different folders; got"
            f" {data_dir} for both. Give the run a folder of its own."
        )
    if real_model_dir in [os.path.join(real_data_dir, name) for name in _SPLITS]:
        raise UserError(
            f"--model_dir must not be a folder of records; got {model_dir}, a split of"
            " --data_dir. Give the run a folder of its own."
        )
