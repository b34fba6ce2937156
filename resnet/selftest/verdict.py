"""Compares what cores have computed: with a table, and with each other."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import google_crc32c

from resnet.base.text import counted, first_of

# What `cases` computes by the kernels of an instruction set: the CRC-32C of all groups.
# A compiler decides which products and sums become an FMA, so it is that of a compiler.
COMPILER = "GCC 12"
TABLE = {
    "AVX2": 0xFB722C84,
    "AVX512_CORE": 0x7A5EEC47,
    "AVX512_CORE_BF16": 0x8B55198D,
    "AVX512_CORE_AMX": 0x4F41B704,
}


@dataclass(frozen=True)
class CoreResult:
    """What a core has computed."""

    cpu: int  # The logical processor that has computed it.
    core: int  # The number within its socket.
    socket: int  # -1 if unknown.
    digests: dict[str, int] = field(default_factory=dict)  # CRC-32C of each group.
    seconds: float = 0.0
    failure: str = ""  # How the computation has ended, if without a result.

    @property
    def crc(self) -> int:
        """The CRC-32C of all groups."""
        crc = 0
        for digest in self.digests.values():
            crc = google_crc32c.extend(crc, digest.to_bytes(4, "little"))
        return crc

    def describe(self, host: str) -> str:
        """Returns where the core is."""
        socket = f" of socket {self.socket}" if self.socket >= 0 else ""
        return f"core {self.core}{socket} on {host} (processor {self.cpu})"


@dataclass(frozen=True)
class HostResult:
    """What the cores of a host have computed, or those of a rank on it."""

    host: str
    instruction_set: str  # Of `native.instruction_set`; the result depends on it,
    compiler: str  # and on the compiler of the ops, such as "GCC 12".
    cores: tuple[CoreResult, ...] = ()  # None without compiled ops.

    @property
    def kernels(self) -> str:
        """What has to be equal if results are to be equal."""
        if not self.cores:
            return "no compiled kernels"
        return f"{self.instruction_set} kernels of {self.compiler}"

    def in_table(self) -> int | None:
        """Returns what the table has for these kernels."""
        known = TABLE if self.compiler == COMPILER else {}
        return known.get(self.instruction_set)


@dataclass(frozen=True)
class Verdict:
    """What is wrong: a sentence for each host with a core that computes wrongly."""

    bad: dict[str, str]
    # Of all cores with the same kernels, which agree with each other.
    disagreements: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """All that is wrong."""
        return [*self.bad.values(), *self.disagreements]


def judge(results: Sequence[HostResult]) -> Verdict:
    """Compares all cores that have the same kernels."""
    bad, disagreements = dict[str, str](), list[str]()
    for kernels in dict.fromkeys(result.kernels for result in results):
        own = [result for result in results if result.kernels == kernels]
        cores = [core for result in own for core in result.cores]
        table, right = own[0].in_table(), _right(cores, own[0].in_table())
        if table is not None and right is not None and right != table:
            agreeing = sum(core.crc == right for core in cores)
            names = first_of(dict.fromkeys(result.host for result in own))
            disagreements.append(
                f"the {kernels} must compute {table:08x}; {counted(agreeing, 'core')}"
                f" on {names} agree on {right:08x}. The library of compiled ops is"
                " damaged in its file or in memory, or it was built with other"
                " options. Build it again (make venv), or look for bad memory."
            )
        correct = [core for core in cores if core.crc == right and not core.failure]
        for result in own:
            wrong = [core for core in result.cores if core.failure or core.crc != right]
            if wrong:
                bad[result.host] = _sentence(result, wrong, right, correct[:1])
    return Verdict(bad, tuple(disagreements))


def _right(cores: Sequence[CoreResult], table: int | None) -> int | None:
    """Returns what some cores with the same kernels must compute; None if unknown.

    It is what the table has, if any core computes that. Else it is what most cores
    compute, if there are two at least: then the kernels are not those of the table.
    """
    counts = Counter(core.crc for core in cores if not core.failure)
    if not counts or table in counts:
        return table
    crc, count = counts.most_common(1)[0]
    return crc if table is None or 2 * count > len(cores) > 1 else table


def _sentence(
    result: HostResult,
    wrong: Sequence[CoreResult],
    right: int | None,
    correct: Sequence[CoreResult],
) -> str:
    """Returns a sentence about the wrong cores of a host, given a correct core."""
    core = wrong[0]
    text = core.failure or f"it has computed {core.crc:08x}"
    groups = [
        name
        for of_core in correct
        for name, digest in of_core.digests.items()
        if not core.failure and core.digests.get(name) != digest
    ]
    if groups:
        text += f", with other results of {first_of(groups, 3)}"
    expected = f" {right:08x}" if right is not None else ""
    more = f", and so do {len(wrong) - 1} more cores there" if len(wrong) > 1 else ""
    return (
        f"{core.describe(result.host)} must compute{expected} with the"
        f" {result.kernels}; {text}{more}. Leave this host out, and have its processor"
        " checked."
    )
