"""Command-line flags made of declared settings; read by the programs only."""

import dataclasses
from collections.abc import Collection

from absl import flags

from resnet.config import settings

# So that absl counts the flags among those of the modules that call `define`.
flags.disclaim_key_flags()

_DEFINE = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def define(
    kind: type,
    names: Collection[str] | None = None,
    without: Collection[str] = (),
    has_defaults: bool = False,
) -> None:
    """Defines the flags of the settings that a dataclass declares itself.

    Args:
        kind: The dataclass; flags of its bases are not defined.
        names: The names of its settings to define; None for all that have a flag.
        without: The names of settings that are left out.
        has_defaults: Whether a flag that isn't given has the default of the setting,
            which is then shown by --help, rather than None.
    """
    declared = settings.declarations(kind)
    for field in dataclasses.fields(kind):
        declaration = declared.get(field.name)
        if (
            declaration is None
            or declaration.flag is None
            or field.name not in kind.__annotations__
            or field.name in without
            or (names is not None and field.name not in names)
        ):
            continue
        _DEFINE[settings.value_type(kind, field.name)](
            settings.flag_name(field.name, declaration),
            field.default if has_defaults else None,
            declaration.help.format(names=", ".join(declaration.names)),
        )
