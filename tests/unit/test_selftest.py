"""The self-test of cores: its numbers, that it calls every op, and its verdicts."""

import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from eval import selftest as program
from resnet import native
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.selftest import cases, cores, job, verdict
from resnet.selftest.numbers import Numbers
from resnet.selftest.verdict import CoreResult, HostResult, judge
from tests.in_process import run

MASK = (1 << 64) - 1
RIGHT = {"convolutions": 1, "updates": 2}
CRC = CoreResult(0, 0, 0, RIGHT).crc


def split_mix(state: int) -> int:
    """Returns a number of SplitMix64 as its authors write it, in Python's integers."""
    state = state * 0x9E3779B97F4A7C15 & MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


def test_numbers_are_those_of_integer_arithmetic():
    numbers = Numbers(3)
    expected = [(split_mix(3 * 2**21 + i) >> 40) - 2**23 for i in range(1, 101)]
    assert numbers.integers(100).tolist() == expected
    values = numbers.from_group(0).floats(100)
    np.testing.assert_array_equal(values.astype(float) * 2**22, expected)
    kernel = numbers.kernel(1000)
    as_bfloat16 = tf.cast(kernel, tf.bfloat16).numpy().astype(np.float32)
    assert set(np.abs(as_bfloat16)) <= set(range(65, 129))
    assert (kernel != as_bfloat16).any()  # It is rounded.


class Recorded:
    """A library of ops that keeps the names of those that are called."""

    def __init__(self, library) -> None:
        self.ops_library, self.called = library, set()

    def __getattr__(self, name):
        self.called.add(name)
        return getattr(self.ops_library, name)


def test_every_op_of_the_library_is_called_or_excluded_with_a_reason(
    monkeypatch, tmp_path
):
    recorded = Recorded(native.ops())
    (tmp_path / "record").write_bytes(cases.record())
    for name, number in (
        ("_CONVOLUTIONS", 1),
        ("_WINOGRAD", 1),
        ("_MAPS", 2),
        ("_UPDATES", 1),
    ):
        monkeypatch.setattr(cases, name, number)
    monkeypatch.setattr(cases, "_CODED", (5_200,))
    monkeypatch.setattr(cases, "_TILES", ((1, 9),))
    monkeypatch.setattr(native, "ops", lambda: recorded)
    digests = cases.digests(1, tmp_path / "record")
    assert 0 not in digests.values()
    # TensorFlow adds a function for the graph's attributes, whose name has no prefix.
    ops = {name for name in dir(recorded.ops_library) if name.startswith("resnet_")}
    ops = {name for name in ops if not name.endswith("_eager_fallback")}
    assert len(ops) > 20
    assert ops == recorded.called


def core(number: int, digests=RIGHT, **changes) -> CoreResult:
    return CoreResult(2 * number, number, 1, digests, 0.5, **changes)


def host(*results: CoreResult, name="a", kernels="AVX2", compiler=verdict.COMPILER):
    return HostResult(name, kernels, compiler, results)


WRONG = {**RIGHT, "updates": 9}
SILENT = core(2, {}, failure="its process was ended by SIGSEGV")


@pytest.mark.parametrize(
    ("table", "hosts", "bad", "num_disagreements"),
    [
        (CRC, [host(core(0), core(1))], {}, 0),
        (CRC, [host(core(0), core(1, WRONG))], {"a": "core 1 of socket 1 on a"}, 0),
        # The table decides, also against most cores.
        (
            CRC,
            [
                host(core(0), name="b"),
                host(core(1, WRONG), core(2, WRONG), core(3, WRONG)),
            ],
            {"a": "and so do 2 more cores there"},
            0,
        ),
        (CRC, [host(core(0), SILENT)], {"a": "ended by SIGSEGV"}, 0),
        (
            CRC,
            [host(core(0, WRONG))],
            {"a": f"must compute {CRC:08x} with the AVX2"},
            0,
        ),
        # Kernels that aren't the table's: all cores agree, or most do.
        (0, [host(core(0), core(1))], {}, 1),
        (0, [host(core(0), core(1), core(3, WRONG))], {"a": "core 3 of"}, 1),
        (0, [host(core(0), core(1, WRONG))], {"a": "core 0 of"}, 0),
        (0, [host(core(0), compiler="clang")], {}, 0),
        (
            0,
            [
                host(core(0), core(1), compiler="clang"),
                host(core(4, WRONG), name="b", compiler="clang"),
            ],
            {"b": "other results of updates"},
            0,
        ),
        # Other kernels are compared with their like alone.
        (CRC, [host(core(0)), host(core(0, WRONG), kernels="NEON", name="b")], {}, 0),
        (CRC, [host(kernels="NONE", compiler="")], {}, 0),
    ],
)
def test_the_cores_that_differ_are_named(
    monkeypatch, table, hosts, bad, num_disagreements
):
    monkeypatch.setattr(verdict, "TABLE", {"AVX2": table})
    judged = judge(hosts)
    assert list(judged.bad) == list(bad)
    for name, words in bad.items():
        assert words in judged.bad[name]
    assert len(judged.disagreements) == num_disagreements


@given(st.permutations(range(6)), st.sets(st.integers(0, 5), max_size=2))
def test_the_order_of_hosts_and_cores_decides_nothing(order, wrong):
    hosts = [host(core(0, WRONG if i in wrong else RIGHT), name=str(i)) for i in order]
    assert set(judge(hosts).bad) == {str(i) for i in wrong}


@pytest.mark.parametrize("is_bad", [False, True])
def test_a_job_with_a_bad_core_fails_with_the_name_of_its_host(monkeypatch, is_bad):
    result = host(core(0), core(1, WRONG if is_bad else RIGHT), name="node7")
    monkeypatch.setattr(verdict, "TABLE", {"AVX2": CRC})
    monkeypatch.setattr(job, "_test", lambda cores: result)
    process = ProcessInfo()
    if not is_bad:
        job.check(process, Communicator(process))
        return
    with pytest.raises(AgreedFailure, match="core 1 of socket 1 on node7") as raised:
        job.check(process, Communicator(process))
    assert raised.value.hosts == ("node7",)


def test_the_program_prints_each_core_and_ends_with_1_if_one_is_wrong(monkeypatch):
    monkeypatch.setattr(verdict, "TABLE", {"AVX2": CRC})
    results = [host(core(0), core(1)), host(core(0), core(1, WRONG)), host()]
    monkeypatch.setattr(cores, "test", lambda cores, host: results.pop(0))
    done = [run(program), run(program), run(program)]
    assert [of.returncode for of in done] == [0, 1, 2]
    assert (
        f"core 1 of socket 1 on a (processor 2): {CRC:08x} in 0.50 s" in done[0].stdout
    )
    assert done[0].stderr == ""
    assert "error: core 1 of socket 1 on a (processor 2) must" in done[1].stderr


def test_the_compiler_of_a_library_is_known_by_its_comment(tmp_path):
    path = tmp_path / "library.so"
    for comment, expected in (
        (b"GCC: (Debian 12.2.0-14) 12.2.0\0", "GCC 12"),
        (b"GCC: (GNU) 14.1\0clang version 18.1.3\0", "another compiler than GCC"),
        (b"", "another compiler than GCC"),
    ):
        path.write_bytes(b"\x7fELF" + comment)
        assert cores._compiler(path) == expected


def test_a_core_that_crashes_hangs_or_fails_is_told_from_the_others(monkeypatch):
    """Each process runs on a processor of this machine that does as its number says."""

    def compute(cpu, path, writer):
        if cpu == 0:
            writer.send((RIGHT, 0.5))
        elif cpu == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        elif cpu == 2:
            time.sleep(60)
        else:
            os._exit(3)

    monkeypatch.setattr(cores, "_compute", compute)
    monkeypatch.setattr(cores, "_MOST_SECONDS", 0.3)
    results = cores._in_processes(range(4), None)
    assert [of.digests for of in results] == [RIGHT, {}, {}, {}]
    for result, words in zip(
        results[1:], ("SIGKILL", "not ended within", "code 3"), strict=True
    ):
        assert words in result.failure
