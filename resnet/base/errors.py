"""The error of a user's mistake, and the exit of a one-process program with it."""

import contextlib
import importlib.metadata
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from absl import flags

from resnet.base import program_help
from resnet.base.import_failures import EXIT_CODE as EXIT_CODE
from resnet.base.program_help import Topic

# Description of a valid value, by absl's name of the type of a flag.
_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}


class UserError(ValueError):
    """A mistake of the user, reported as one sentence without a traceback.

    The sentence says what was expected, what was found and what to do.
    """


@contextlib.contextmanager
def naming_failures(action: str) -> Iterator[None]:
    """Turns a failure of the system in the block into a UserError.

    Args:
        action: Description of the block, such as "reading the record set in /data".

    Raises:
        UserError: If a file can't be read or written, or there isn't enough memory.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{action} failed: {error}") from error
    except MemoryError as error:
        raise UserError(f"{action} failed for lack of memory") from error


def run(main: Callable[[], None], topics: Sequence[Topic] = ()) -> None:
    """Parses the flags and runs `main`; prints a UserError and exits with code 2.

    Args:
        main: A function of the program's module, whose docstring `--help` prints.
        topics: The topics of its flags, for `--help`.
    """
    with _one_sentence():
        parse_flags(sys.argv, sys.modules[main.__module__].__doc__, topics)
        main()


def run_with_arguments(main: Callable[[Sequence[str]], None]) -> None:
    """Does what `run` does for a program that takes arguments beside its flags.

    Args:
        main: A function of the arguments, as `run` takes it.
    """
    with _one_sentence():
        main(parse_arguments(sys.argv, sys.modules[main.__module__].__doc__))


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """Prints a UserError of the block and exits with code 2."""
    escape_unprintable()
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODE)


def escape_unprintable() -> None:
    """Has standard output escape characters that its encoding lacks.

    By default it raises an error; standard error escapes them.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def parse_flags(
    argv: Sequence[str], description: str | None, topics: Sequence[Topic] = ()
) -> None:
    """Parses the absl flags in `argv`, as `parse_arguments` does.

    Raises:
        UserError: If a flag is unknown, a value has the wrong type, or an argument is
            not a flag.
    """
    if rest := parse_arguments(argv, description, topics):
        raise UserError(
            f"expected only flags of the form --name=value; got {rest[0]!r}."
            " --help lists the flags."
        )


def parse_arguments(
    argv: Sequence[str], description: str | None, topics: Sequence[Topic] = ()
) -> list[str]:
    """Parses the absl flags in `argv` and returns the arguments that are not flags.

    Flags and arguments may be in any order. What follows `--` is an argument.

    `--help` prints the usual ones, `--helpfull` all, `--version` the version, and each
    exits with code 0. A value that begins with "~" is a path in the user's home, which
    shells do not expand in `--name=~/path`.

    Args:
        argv: Command line, with the program's name first.
        description: Description of the program, for `--help`.
        topics: The topics of its flags, for `--help`.

    Raises:
        UserError: If a flag is unknown, or a value has the wrong type.
    """
    is_full = any(argument in ("--helpfull", "-helpfull") for argument in argv[1:])
    if is_full or any(argument in ("--help", "-help", "-h") for argument in argv[1:]):
        print_to_pipe(
            program_help.text(description or argv[0], flags.FLAGS, topics, is_full)
        )
        sys.exit(0)
    if any(argument in ("--version", "-version") for argument in argv[1:]):
        print_to_pipe(f"resnet-cpu {_version()}")
        sys.exit(0)
    try:
        rest = flags.FLAGS(list(argv))
    except flags.IllegalFlagValueError as error:
        raise UserError(f"{_in_plain_words(str(error))} --help lists the flags.") from (
            error
        )
    except flags.Error as error:
        # Absl has a space before the question mark.
        sentence = str(error).strip().rstrip(".").replace(" ?", "?")
        sentence += "" if sentence.endswith("?") else "."
        raise UserError(f"{sentence} --help lists the flags.") from error
    for name in flags.FLAGS:
        value = flags.FLAGS[name].value
        if isinstance(value, str) and value.startswith("~"):
            flags.FLAGS[name].value = os.path.expanduser(value)  # As a shell does.
    return list(rest[1:])


def _in_plain_words(problem: str) -> str:
    """Returns absl's message about a bad value, reworded where it quotes Python's."""
    match = re.match(
        r"flag --(\w+)=(.*): (invalid literal|could not|\(?'?Non-b)", problem, re.S
    )
    expected = _TYPES.get(flags.FLAGS[match[1]].flag_type()) if match else None
    if not match or not expected:
        return f"{problem.strip().rstrip('.')}."
    return f"--{match[1]} must be {expected}; got {match[2]!r}."


def _version() -> str:
    try:
        return importlib.metadata.version("resnet-cpu")
    except importlib.metadata.PackageNotFoundError:
        return "of a folder that is not installed"


def print_to_pipe(text: str) -> None:
    """Prints a text; a reader that closes the pipe early, such as `head`, is no error.

    If the reader has closed the pipe, later output is discarded.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The rest of the buffer is written when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
