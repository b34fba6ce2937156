"""The error of a user's mistake, and the exit of a one-process program with it."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from absl import flags

EXIT_CODE = 2  # Exit code of all programs here for a mistake of the user.


class UserError(ValueError):
    """A mistake of the user, reported as one sentence without a traceback.

    The sentence says what was expected, what was found and what to do.
    """


@contextlib.contextmanager
def naming_failures(action: str) -> Iterator[None]:
    """Raises a UserError for a failure of the system in the block.

    Args:
        action: What the block does, such as "reading the record set in /data".

    Raises:
        UserError: If a file can't be read or written, or there isn't enough memory.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{action} failed: {error}") from error
    except MemoryError as error:
        raise UserError(f"{action} failed for lack of memory") from error


def run(main: Callable[[], None]) -> None:
    """Parses the flags and runs `main`; prints a UserError and exits with code 2."""
    try:
        parse_flags(sys.argv)
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODE)


def parse_flags(argv: Sequence[str]) -> None:
    """Parses the absl flags in `argv`; `--help` prints them and exits with code 0.

    A value that begins with "~" is a path in the user's home: shells leave it as it is
    in `--name=~/path`.

    Raises:
        UserError: If a flag is unknown, a value has the wrong type, or an argument is
            not a flag.
    """
    if any(argument in ("--help", "-help", "-h") for argument in argv[1:]):
        print(sys.modules["__main__"].__doc__ or argv[0])
        for module in sorted(flags.FLAGS.flags_by_module_dict()):
            if not module.startswith("absl."):
                print(flags.FLAGS.module_help(module))
        sys.exit(0)
    try:
        rest = flags.FLAGS(list(argv))
    except flags.Error as error:
        sentence = str(error).strip().rstrip(".")
        raise UserError(f"{sentence}. --help lists the flags.") from error
    for name in flags.FLAGS:
        value = flags.FLAGS[name].value
        if isinstance(value, str) and value.startswith("~"):
            flags.FLAGS[name].value = os.path.expanduser(value)  # As a shell does.
    if len(rest) > 1:
        raise UserError(
            f"expected only flags of the form --name=value; got {rest[1]!r}."
            " --help lists the flags."
        )
