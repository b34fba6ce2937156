"""Flips bits of the compiled ops' code in memory, and counts what the self-test finds.

python tests/flip_code_bits.py --flips=200 --kernels=AVX512_CORE_BF16
python tests/flip_code_bits.py --repeats=1000

A flip is made from outside, through /proc/PID/mem, in a process that has loaded the
library and not computed yet, in an instruction that the computation of
`REFERENCE_SEEDS` runs, on other shapes and numbers than the self-test's. It is found
if the self-test computes something else than always, crashes or hangs, and missed if
only the other computation does; otherwise it changes nothing, and doesn't count.
To save time, only the groups of ops that run the instruction are computed.
--repeats runs the self-test on undisturbed code instead. On x86_64, with objdump.
"""

import argparse
import ctypes
import itertools
import os
import pathlib
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.runtime import startup

startup.import_tensorflow()

import tensorflow as tf

from resnet import native
from resnet.selftest import cases, cores
from tests.unit import each_instruction_set

REFERENCE_SEEDS = (101, 102)
GROUPS = (*cases._OF_FORMAT, *cases._WITHOUT_FORMAT)
_SECONDS = 60  # Of processor time, until a process counts as hanging.
_NOBODY = 65534  # Flipped code must not write to files of this user.
_TRACE_ME, _CONTINUE, _GET_REGISTERS, _SET_REGISTERS = 0, 7, 12, 13
_INSTRUCTION_POINTER = 16  # In `user_regs_struct` of sys/user.h, of 27 registers.
_BREAKPOINT = 0xCC
_LIBC = ctypes.CDLL(None)
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class Computation:
    """A process that computes digests; what is done to it before is the caller's."""

    def __init__(
        self,
        seeds: Sequence[int],
        path: pathlib.Path,
        groups: Collection[str] = GROUPS,
        traced: bool = False,
    ) -> None:
        start, self._started = os.pipe()
        self._result, written = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._started)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                if traced:
                    _LIBC.ptrace(_TRACE_ME, 0, None, None)
                elif os.getuid() == 0:
                    os.setuid(_NOBODY)
                os.read(start, 1)
                tf.config.threading.set_intra_op_parallelism_threads(1)
                tf.config.threading.set_inter_op_parallelism_threads(1)
                leave_out({*GROUPS} - {*groups})
                digests = [cases.digests(seed, path) for seed in seeds]
                os.write(written, pickle.dumps(digests))
            finally:
                os._exit(0)
        os.close(start)
        os.close(written)
        self.memory = open(f"/proc/{self.pid}/mem", "r+b", buffering=0)  # noqa: SIM115

    def run(self) -> object:
        """Returns what it computes, or the name of the signal that has ended it."""
        os.close(self._started)
        end_at = time.monotonic() + 20 * _SECONDS
        while (ended := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end_at:  # It waits for something.
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        return self._end(ended[1])

    def trace(self, addresses: Sequence[int], at_trap: Callable[[int], None]) -> object:
        """Runs it with a breakpoint in each instruction, removed when it is reached."""
        first, size = addresses[0], addresses[-1] - addresses[0] + 1
        self.memory.seek(first)
        original = self.memory.read(size)
        changed = bytearray(original)
        for address in addresses:
            changed[address - first] = _BREAKPOINT
        self.memory.seek(first)
        self.memory.write(changed)
        os.close(self._started)
        registers = (ctypes.c_uint64 * 27)()
        while True:
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                return self._end(status)
            number = os.WSTOPSIG(status)
            if number == signal.SIGTRAP:
                _LIBC.ptrace(_GET_REGISTERS, self.pid, None, registers)
                address = registers[_INSTRUCTION_POINTER] - 1
                if 0 <= address - first < size:
                    at_trap(address)
                    self.memory.seek(address)
                    self.memory.write(original[address - first : address - first + 1])
                    registers[_INSTRUCTION_POINTER] = address
                    _LIBC.ptrace(_SET_REGISTERS, self.pid, None, registers)
                    number = 0
            _LIBC.ptrace(_CONTINUE, self.pid, None, number)

    def _end(self, status: int) -> object:
        self.memory.close()
        with os.fdopen(self._result, "rb") as file:
            data = file.read()
        if os.WIFSIGNALED(status):
            return signal.Signals(os.WTERMSIG(status)).name
        return pickle.loads(data) if data else "an exception"


def leave_out(groups: Collection[str]) -> None:
    """Makes the cases of this process compute nothing of some groups."""
    for table in (cases._OF_FORMAT, cases._WITHOUT_FORMAT):
        table.update(dict.fromkeys(groups & table.keys(), lambda *_: iter(())))
    if "convolutions" in groups:
        cases._convolutions = lambda *_: iter(())


def only(results: list[dict[str, int]], groups: Collection[str]) -> object:
    """Returns what results are if only some groups are computed."""
    return [
        {name: crc * (name.split(" in ")[0] in groups) for name, crc in of_seed.items()}
        for of_seed in results
    ]


def instructions() -> dict[int, int]:
    """Returns the length of each instruction of the loaded library, by its address."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    name = re.escape(native.OPS_LIBRARY.name)
    start, offset = re.findall(rf"^(\w+)-\w+ r-xp (\w+) .*{name}$", maps, re.M)[0]
    words = ["objdump", "-d", "-j", ".text", "--no-show-raw-insn"]
    done = subprocess.run(
        [*words, str(native.OPS_LIBRARY)], stdout=subprocess.PIPE, text=True, check=True
    )
    base = int(start, 16) - int(offset, 16)
    found = [
        base + int(address, 16)
        for address in re.findall(r"^ *([0-9a-f]+):\t", done.stdout, re.M)
    ]
    return {address: end - address for address, end in itertools.pairwise(found)}


def executed(seeds: Sequence[int], path: pathlib.Path) -> dict[int, set[str]]:
    """Returns the instructions that a computation runs, with the groups that do so."""
    reached: dict[int, set[str]] = {}
    for group in GROUPS:

        def note(address: int, group: str = group) -> None:
            reached.setdefault(address, set()).add(group)

        process = Computation(seeds, path, (group,), traced=True)
        outcome = process.trace(sorted(instructions()), note)
        assert isinstance(outcome, list), outcome
    return reached


def flip_bits(num_flips: int, path: pathlib.Path, numbers: random.Random) -> None:
    right = Computation([cores.SEED], path).run()
    reference = Computation(REFERENCE_SEEDS, path).run()
    assert isinstance(right, list)
    assert isinstance(reference, list)
    lengths = instructions()
    used, by_test = executed(REFERENCE_SEEDS, path), executed([cores.SEED], path)
    both = len(used.keys() & by_test.keys())
    print(f"instructions: {len(lengths)}, run: {len(used)}, by the self-test: {both}")
    places = [(a, a + i) for a in sorted(used) for i in range(lengths.get(a, 1))]
    counts: Counter[str] = Counter()
    while counts["found"] + counts["missed"] < num_flips:
        (instruction, address), bit = numbers.choice(places), numbers.randrange(8)
        groups = used[instruction] | by_test.get(instruction, set())

        def outcome(seeds, groups=groups, address=address, bit=bit) -> object:
            process = Computation(seeds, path, groups)
            process.memory.seek(address)
            before = process.memory.read(1)
            process.memory.seek(address)
            process.memory.write(bytes([before[0] ^ 1 << bit]))
            return process.run()

        result, expected = outcome([cores.SEED]), only(reference, groups)
        counts["flips"] += 1
        if result != only(right, groups):
            kind = "another result" if isinstance(result, list) else str(result)
            counts.update(("found", f"found by {kind}"))
        elif (result := outcome(REFERENCE_SEEDS)) != expected:
            counts["missed"] += 1
            print(f"missed: bit {bit} at {address - min(lengths):#x} changes", end=" ")
            print(different(result, expected), flush=True)
        if counts["flips"] % 20 == 0:
            print(dict(counts), flush=True)
    print(dict(counts))


def different(result: object, reference: list[dict[str, int]]) -> object:
    """Returns the groups of ops whose results differ."""
    if not isinstance(result, list):
        return result
    pairs = zip(result, reference, strict=True)
    return {name for of, right in pairs for name in right if of[name] != right[name]}


def repeat(num_repeats: int, path: pathlib.Path) -> None:
    right = Computation([cores.SEED], path).run()
    assert isinstance(right, list)
    results = (Computation([cores.SEED], path).run() for _ in range(num_repeats))
    alarms = sum(result != right for result in results)
    print(f"self-tests: {num_repeats}, with another result: {alarms}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flips", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--kernels", default="")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    assert native.ops() is not None
    if args.kernels:
        each_instruction_set.limit_instruction_set(args.kernels)
    print(native.instruction_set(), flush=True)
    with tempfile.NamedTemporaryFile() as file:
        path = pathlib.Path(file.name)
        path.write_bytes(cases.record())
        path.chmod(0o644)
        if args.flips:
            flip_bits(args.flips, path, random.Random(args.seed))
        if args.repeats:
            repeat(args.repeats, path)


if __name__ == "__main__":
    main()
