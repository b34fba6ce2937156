"""The error of a user's mistake, and how a program of one process ends with it."""

import sys
from collections.abc import Callable, Sequence

from absl import flags

EXIT_CODE = 2  # Of every program here, for a mistake of its user.


class UserError(ValueError):
    """A mistake of the user's: one sentence, without a traceback.

    The sentence says what was expected, what was there and what to do.
    """


def run(main: Callable[[], None]) -> None:
    """Parses the flags and runs `main`; a UserError is a sentence and exit code 2."""
    try:
        parse_flags(sys.argv)
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODE)


def parse_flags(argv: Sequence[str]) -> None:
    """Lets absl take its flags from `argv`; `--help` prints them and exits with 0.

    Raises:
        UserError: If a flag is unknown or its value is not of its type, or if there is
            an argument that is no flag.
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
    if len(rest) > 1:
        raise UserError(
            f"expected only flags of the form --name=value; got {rest[1]!r}."
            " --help lists the flags."
        )
