"""Writes what a check has found as a table, with a sentence for each problem."""

import textwrap
from collections.abc import Sequence

from launch.checking.findings import Finding

_WIDTH = 80  # The width of most terminals.
_NAME, _STATE = 11, 9


def describe(findings: Sequence[Finding]) -> str:
    """Returns the table.

    Args:
        findings: The lines.
    """
    lines = [f"{'check':{_NAME}}{'result':{_STATE}}found"]
    indent = " " * (_NAME + _STATE)
    for one in findings:
        lines += textwrap.wrap(
            one.found,
            _WIDTH,
            initial_indent=f"{one.name:{_NAME}}{one.state:{_STATE}}",
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    problems = [problem for one in findings for problem in one.problems]
    if problems:
        lines += ["", "Problems:"]
    for problem in problems:
        lines += textwrap.wrap(
            problem.sentence,
            _WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines)
