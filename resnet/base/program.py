"""How a program starts and ends: `main(argv) -> exit code`, and errors as sentences.

Programs import this first: from then on, an import that fails because PYTHONPATH hides
packages of the environment is one sentence (`base.import_failures`).
"""

import sys
from collections.abc import Callable, Sequence

from resnet.base import import_failures

import_failures.report()  # Before the other imports, which may fail.

from resnet.base.errors import EXIT_CODE, UserError, escape_unprintable

Main = Callable[[Sequence[str]], int]


def run(main: Main) -> int:
    """Runs a program with the arguments of this process, and returns its exit code.

    A UserError is printed as one sentence, with exit code 2.
    """
    escape_unprintable()
    try:
        return main(sys.argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CODE
