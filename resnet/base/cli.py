"""Command lines: flags made from dataclasses, the text of --help, and the log.

    FLAGS = (JobSettings, cli.Flags(Config, names=("data_dir", "model_dir")))

    def main(argv: Sequence[str]) -> int:
        line = cli.parse(argv, __doc__, FLAGS)
        job = line.of(JobSettings)

The flags are absl's, in an `absl.flags.FlagValues` of each call, so nothing is shared.
"""

import dataclasses
import logging
import os
import re
import sys
import textwrap
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from absl import flags
from absl import logging as absl_logging

from resnet.base import VERSION, names, settings
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.base.settings import Declaration, setting

WIDTH = 80  # Columns of a terminal.
# Description of a valid value, by absl's name of the type of a flag.
_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_DEFINE = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    bool: flags.DEFINE_bool,
}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Flags:
    """The flags of a program that a dataclass of settings declares."""

    kind: type
    names: Collection[str] | None = None  # None for all but those of its bases.
    without: Collection[str] = ()  # Settings that have no flag in this program.
    has_defaults: bool = True  # Else, something such as a recipe supplies the values.
    common: bool | None = None  # As in a declaration; None for what it says.
    unset: str = ""  # As in a declaration; empty for what it says.


@dataclass(frozen=True)
class OutputSettings:
    """What a program prints."""

    TOPIC: typing.ClassVar[str] = "Output"

    quiet: bool = setting(
        False, "Print only errors, warnings and the result.", common=True
    )


Groups = Sequence[Flags | type]


@dataclass(frozen=True)
class Entry:
    """One flag of a program."""

    setting: str  # The name of its setting.
    declaration: Declaration
    type: Any  # int, float, str, bool or a tuple of one of these.
    default: Any
    common: bool
    unset: str

    @property
    def flag(self) -> str:
        """The name of the flag."""
        return settings.flag_name(self.setting, self.declaration)

    @property
    def meaning(self) -> str:
        """The help text, with the allowed values."""
        names = ", ".join(self.declaration.names)
        text = self.declaration.help.format(names=names)
        if names and "{names}" not in self.declaration.help:
            return f"{text} One of {names}."
        return text


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line."""

    values: Mapping[str, Any]  # Of all flags, by the names of their settings.
    given: Mapping[str, str]  # The words that give settings, such as `--ratio=0.1`.
    arguments: tuple[str, ...]  # Those that are not flags.

    def of(self, kind: type[_T]) -> _T:
        """Returns a dataclass whose fields have the flags' values."""
        names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        return kind(**{name: self.values[name] for name in names & self.values.keys()})

    def overrides(self, *kinds: type) -> dict[str, Any]:
        """Returns the given values of the settings that dataclasses declare."""
        declared = settings.declarations(*kinds)
        return {name: self.values[name] for name in declared if name in self.given}


def entries(groups: Groups) -> list[Entry]:
    """Returns the flags of a program; of two with one name, the first counts."""
    by_flag: dict[str, Entry] = {}
    for group in groups:
        group = group if isinstance(group, Flags) else Flags(group)
        declared, names = settings.declarations(group.kind), group.names
        if names is None:
            names = set(group.kind.__annotations__) - set(group.without)
        for field in dataclasses.fields(group.kind):
            declaration = declared.get(field.name) if field.name in names else None
            if declaration is None or declaration.flag is None:
                continue
            default = field.default if group.has_defaults else None
            common = declaration.common if group.common is None else group.common
            entry = Entry(
                field.name,
                declaration,
                settings.value_type(group.kind, field.name),
                None if default is dataclasses.MISSING else default,
                common and not declaration.hidden,
                group.unset or declaration.unset,
            )
            by_flag.setdefault(entry.flag, entry)
    return list(by_flag.values())


def parse(
    argv: Sequence[str],
    usage: str | None,
    groups: Groups,
    takes_arguments: bool = False,
) -> CommandLine:
    """Parses a command line, with the program's name first.

    `--help` prints the program's docstring, `usage`, and the common flags, `--helpfull`
    all, `--version` the version; each exits with code 0. Flags and arguments may be in
    any order; what follows `--` is an argument. A value that begins with "~" is a path
    in the user's home, which shells do not expand in `--name=~/path`.
    """
    of_program = entries(groups)
    _answer_questions(argv, usage or argv[0], of_program)
    parsed = _flag_values(of_program)
    try:
        arguments = parsed(list(argv))[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(_unknown_flag(error.flagname, of_program)) from error
    except flags.Error as error:
        sentence = _in_plain_words(str(error), parsed)
        raise UserError(f"{sentence} --help lists the flags.") from error
    if arguments and not takes_arguments:
        example = "--model_dir=MODEL" if "model_dir" in parsed else "--name=value"
        raise UserError(
            f"expected only flags, such as {example}; got {arguments[0]!r}."
            " A path with spaces needs quotes. --help lists the flags."
        )
    flags.FLAGS.mark_as_parsed()  # Absl's logging asks for it.
    values, given, problems = {}, {}, []
    for entry in of_program:
        names = [name for name, _ in _names(entry)]
        used = next((name for name in names if parsed[name].present), entry.flag)
        value = _typed(parsed[used].value, entry)
        values[entry.setting] = value
        if parsed[used].present:
            given[entry.setting] = parsed[used].serialize()
            problems += settings.problems_of_value(
                value, f"--{entry.flag}", entry.declaration
            )
    if problems:
        raise UserError(" ".join(problems))
    if values.get("quiet"):
        verbosity = min(absl_logging.get_verbosity(), absl_logging.WARNING)
        absl_logging.set_verbosity(verbosity)
    return CommandLine(values, given, tuple(arguments))


def _answer_questions(argv: Sequence[str], usage: str, of_program: list[Entry]) -> None:
    """Prints what --help, --helpfull or --version ask for, and exits."""
    words = {word.removeprefix("-") for word in argv[1:] if word.startswith("-")}
    if words & {"helpfull", "-helpfull"}:
        text = help_text(usage, of_program, is_full=True)
    elif words & {"help", "-help", "h"}:
        text = help_text(usage, of_program)
    elif words & {"version", "-version"}:
        text = f"resnet-cpu {VERSION}"
    else:
        return
    print_result(text)
    sys.exit(0)


class _Sentences(absl_logging.PythonFormatter):
    """Formats log lines for people: warnings and errors say that they are.

    With --logtostderr or --alsologtostderr, all lines have absl's prefix.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        if any(flags.FLAGS[name].value for name in ("logtostderr", "alsologtostderr")):
            return super().format(record)
        text = logging.Formatter.format(self, record)
        is_notice = record.levelno < logging.WARNING
        return text if is_notice else f"{record.levelname.lower()}: {text}"


def start_log(verbosity: int = absl_logging.WARNING) -> None:
    """Has absl's log written to standard error, from such a verbosity on."""
    absl_logging.use_absl_handler()
    absl_logging.get_absl_handler().setFormatter(_Sentences())
    absl_logging.set_verbosity(verbosity)


def _flag_values(of_program: list[Entry]) -> flags.FlagValues:
    """Returns the flags of a program, and absl's own, which are about its logging."""
    own = flags.FlagValues()
    for entry in of_program:
        is_list = typing.get_origin(entry.type) is tuple
        define = flags.DEFINE_list if is_list else _DEFINE[entry.type]
        default = list(entry.default) if is_list and entry.default else entry.default
        for name, short in _names(entry):
            define(name, default, "", short_name=short or None, flag_values=own)
    for module, of_module in flags.FLAGS.flags_by_module_dict().items():
        for flag in of_module if module.startswith("absl.") else ():
            if flag.name not in own:
                own[flag.name] = flag
    return own


def _names(entry: Entry) -> list[tuple[str, str]]:
    """Returns the names of a flag, each with the letter of its short form."""
    return [(entry.flag, entry.declaration.short_flag), *entry.declaration.aliases]


def _typed(value: Any, entry: Entry) -> Any:
    """Returns the value of a flag as its setting has it."""
    if isinstance(value, str):
        value = os.path.expanduser(value) if value.startswith("~") else value
        return dict(entry.declaration.synonyms).get(value, value)
    if not isinstance(value, list):
        return value
    item = typing.get_args(entry.type)[0]
    try:
        return tuple(item(word) for word in value)
    except ValueError as error:
        kind = {int: "whole numbers", float: "numbers"}[item]
        raise UserError(
            f"--{entry.flag} must be {kind} with commas between them; got"
            f" {','.join(value)!r}. --help lists the flags."
        ) from error


def _in_plain_words(problem: str, parsed: flags.FlagValues) -> str:
    """Returns absl's message as a sentence, reworded where it quotes Python's."""
    match = re.match(
        r"flag --(\w+)=(.*): (invalid literal|could not|\(?'?Non-b)", problem, re.S
    )
    if match and (expected := _TYPES.get(parsed[match[1]].flag_type())):
        return f"--{match[1]} must be {expected}; got {match[2]!r}."
    return f"{problem.strip().rstrip('.')}."


def _unknown_flag(name: str, of_program: list[Entry]) -> str:
    """Returns the sentence about a flag that there isn't, with the nearest ones."""
    listed = [entry for entry in of_program if not entry.declaration.hidden]
    listed.sort(key=lambda entry: not entry.common)
    synonyms = {
        other: entry.flag
        for entry in listed
        for other in entry.declaration.elsewhere.split()
    }
    meant = names.nearest(name, [entry.flag for entry in listed], synonyms)
    question = names.did_you_mean([f"--{flag}" for flag in meant])
    return f"there is no flag --{name}.{question} --help lists the flags."


def help_text(usage: str, of_program: Sequence[Entry], is_full: bool = False) -> str:
    """Returns what --help prints, or --helpfull; all flags if no flag is common.

    Topics are in the order of their first common flags.
    """
    shown = [entry for entry in of_program if not entry.declaration.hidden]
    is_full = is_full or not any(entry.common for entry in shown)
    topics: dict[str, list[Entry]] = {}
    for entry in sorted(shown, key=lambda entry: not entry.common):
        of_topic = topics.setdefault(entry.declaration.topic or "Flags", [])
        if is_full or entry.common:
            of_topic.append(entry)
    parts = [usage]
    for title, of_topic in topics.items():
        if of_topic:
            parts.append("\n".join([f"{title}:", *map(_lines_about, of_topic), ""]))
    if not is_full and (left := sum(not entry.common for entry in shown)):
        parts.append(f"--helpfull lists {left} more.\n")
    return "\n".join(parts).rstrip("\n")


def _lines_about(entry: Entry) -> str:
    default = entry.default
    if isinstance(default, tuple):
        default = ", ".join(map(str, default))
    note = "" if default in (None, False, "") else f" (default: {default})"
    short = entry.declaration.short_flag
    name = f"[no]{entry.flag}" if entry.type is bool else entry.flag
    return textwrap.fill(
        f"{f'-{short},' if short else ''}--{name}: {entry.meaning}{note}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
