"""Defines the command-line flags of declared settings (`config.settings`)."""

import dataclasses
from collections.abc import Collection

from absl import flags

from resnet.base import settings

# So that absl counts the flags among those of the modules that call `define`.
flags.disclaim_key_flags()

_DEFINE = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    bool: flags.DEFINE_bool,
}


def define(
    kind: type,
    names: Collection[str] | None = None,
    without: Collection[str] = (),
    has_defaults: bool = False,
    flag_values: flags.FlagValues = flags.FLAGS,
) -> None:
    """Defines the flags of the settings that a dataclass declares itself.

    Args:
        kind: The dataclass; the settings of its bases are left out.
        names: The names of the settings to define flags for; None for all settings that
            have a flag.
        without: The names of settings to leave out.
        has_defaults: Whether the default of a flag is that of the setting, which --help
            then shows, rather than None.
        flag_values: The flags to define them among.
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
            short_name=declaration.short_flag or None,
            flag_values=flag_values,
        )
