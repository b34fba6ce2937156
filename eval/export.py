"""Exports the network of a training run, for use without this project.

python eval/export.py --model_dir=MODEL --out=EXPORT --format=savedmodel
python eval/export.py --model_dir=MODEL --out=network.onnx --format=onnx
"""

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from eval import checkpoint_choice
from resnet.base import cli
from resnet.base.errors import UserError
from resnet.base.names import require_lines
from resnet.base.settings import setting
from resnet.config.config import Config, load_config
from resnet.export import contents, formats
from resnet.runtime import startup


@dataclass(frozen=True)
class ExportSettings:
    """What is exported, and how."""

    out: str = setting(
        "",
        "The file to write, or for savedmodel and openvino the folder. It must not"
        " exist.",
        unset="required",
    )
    format: str = setting(
        "savedmodel", "The format to write.", names=tuple(formats.FORMATS)
    )
    step: int | None = setting(
        None,
        "Step of the checkpoint to export; unset, the newest one.",
        unset="the newest",
    )
    weights: str | None = setting(
        None,
        "Weights to export: raw, or ema (their exponential moving average). By default"
        " ema if the run has EMA weights, else raw.",
        names=("raw", "ema"),
        unset="`ema` if the run has it",
    )
    precision: str = setting(
        formats.FLOAT32,
        "The precision of the export; int8 has weights of 8 bits. docs/export.md says"
        " which formats have which.",
        names=formats.PRECISIONS,
    )
    fold_batch_norm: bool = setting(
        True,
        "Whether batch normalization is folded into the convolutions. Unfolded, the"
        " formats keras and safetensors can be trained on; torchvision always is.",
    )


FLAGS: cli.Groups = (
    cli.Flags(Config, names=("model_dir",), common=True),
    cli.Flags(ExportSettings, common=True),
)


def main(argv: Sequence[str]) -> int:
    """Exports as the flags say."""
    line = cli.parse(argv, __doc__, FLAGS)
    settings = line.of(ExportSettings)
    for name in ("model_dir", "out"):
        if not line.values[name]:
            raise UserError(f"--{name} is required.")
    out, model_dir = pathlib.Path(settings.out), pathlib.Path(line.values["model_dir"])
    can_be_folded = formats.FORMATS[settings.format].can_be_folded
    is_folded = settings.fold_batch_norm and can_be_folded
    config = load_config(str(model_dir))
    formats.check(settings.format, settings.precision, is_folded, out, config)
    require_lines(config.class_names)
    checkpoint_choice.require(settings.step, settings.weights, config, model_dir)
    startup.start_alone()
    from resnet.checkpoint import restore

    trained = restore.load_network(config, model_dir, settings.step, settings.weights)
    described = contents.of_run(
        config, trained.step, trained.weights, settings.precision, is_folded
    )
    formats.write(settings.format, trained, described, out)
    print(
        f"{out}: {config.model} of step {trained.step} ({trained.weights} weights),"
        f" {config.num_classes} classes, {settings.precision}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
