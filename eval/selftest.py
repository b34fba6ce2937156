r"""Tests each core of this machine: whether it computes what all others compute.

python eval/selftest.py
python eval/selftest.py --json

A core that differs from a table or from the other cores is named, and the exit
code is 1. --json prints what the cores have computed, for comparison with other
hosts, as launch/plan.py --check does. docs/trust.md says what is tested.
"""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from resnet.base import cli
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.base.settings import setting
from resnet.base.text import counted
from resnet.hardware import launchers, physical_cores
from resnet.selftest import cores, verdict


@dataclass(frozen=True)
class SelfTestFlags:
    """What is printed."""

    json: bool = setting(
        False, "Print what each core has computed as JSON, without a verdict."
    )


FLAGS: cli.Groups = (SelfTestFlags,)


def main(argv: Sequence[str]) -> int:
    """Tests the cores, and returns 1 if one computes wrongly."""
    flags = cli.parse(argv, __doc__, FLAGS).of(SelfTestFlags)
    host = launchers.host_name(os.environ)
    result = cores.test(physical_cores.usable(), host)
    if flags.json:
        print_result(json.dumps(dataclasses.asdict(result)))
        return 0
    if not result.cores:
        raise UserError(
            "the self-test needs the compiled ops; there are none, as the warning above"
            " says."
        )
    print_result(f"{counted(len(result.cores), 'core')} with the {result.kernels}")
    for core in result.cores:
        text = core.failure or f"{core.crc:08x} in {core.seconds:.2f} s"
        print_result(f"{core.describe(result.host)}: {text}")
    expected = result.in_table()
    text = "nothing for these kernels" if expected is None else f"{expected:08x}"
    print_result(f"the table of {verdict.COMPILER} has {text}")
    sentences = verdict.judge([result]).sentences
    for sentence in sentences:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(program.run(main))
