import platform
import re
import struct
from pathlib import Path

import pytest

from resnet.hardware import cpu_features

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some CPU: the best
flags\t\t: fpu vme avx512f amx_tile amx_bf16
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: fpu other
"""
AMX = frozenset({"fpu", "amx_tile", "amx_bf16"})


def test_the_first_processors_flags_are_read(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    assert cpu_features.flags(path) == {
        "fpu",
        "vme",
        "avx512f",
        "amx_tile",
        "amx_bf16",
    }


def test_arm_calls_them_features(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert cpu_features.flags(path) == {"fp", "asimd", "bf16"}


def test_without_a_list_there_are_no_flags(tmp_path):
    assert cpu_features.flags(tmp_path / "missing") == frozenset()
    empty = tmp_path / "empty"
    empty.write_text("")
    assert cpu_features.flags(empty) == frozenset()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx512f", "amx_bf16"}, True),
        ({"avx512_bf16"}, True),
        ({"bf16"}, True),
        ({"avx512f", "avx2"}, False),
        (set(), False),
    ],
)
def test_bf16_is_told_from_the_flags(features, expected):
    assert cpu_features.has_bf16(frozenset(features)) is expected


def test_without_amx_nothing_is_hidden_and_nothing_asked():
    def fail(leaf, subleaf):
        raise AssertionError

    assert not cpu_features.amx_is_hidden(frozenset({"avx512f"}), fail)


def test_tiles_that_are_described_are_not_hidden():
    asked = []

    def cpuid(leaf, subleaf):
        asked.append((leaf, subleaf))
        return (0x04002000, 0x00080040, 0x10, 0)  # A Sapphire Rapids' palette 1.

    assert not cpu_features.amx_is_hidden(AMX, cpuid)
    assert asked == [(0x1D, 1)]


def test_tiles_of_nothing_but_zeros_are_hidden():
    assert cpu_features.amx_is_hidden(AMX, lambda leaf, subleaf: (0, 0, 0, 0))


def test_a_processor_that_cannot_be_asked_counts_as_hidden():
    def cpuid(leaf, subleaf):
        raise PermissionError("no executable pages here")

    assert cpu_features.amx_is_hidden(AMX, cpuid)


def test_another_architecture_cannot_be_asked(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(OSError, match="x86-64"):
        cpu_features._run_cpuid(0, 0)
    assert cpu_features.amx_is_hidden(AMX)


if platform.machine() == "x86_64":

    def test_the_processor_tells_the_vendor_that_linux_tells():
        _, ebx, ecx, edx = cpu_features._run_cpuid(0, 0)
        vendor = struct.pack("<III", ebx, edx, ecx).decode()
        text = Path("/proc/cpuinfo").read_text()
        assert vendor == re.search(r"vendor_id\s*: (\S+)", text)[1]

    def test_the_processor_tells_the_features_that_linux_tells():
        # Leaf 7 takes a subleaf, so ecx must get through; ebx bit 5 is AVX2.
        _, ebx, *_ = cpu_features._run_cpuid(7, 0)
        assert bool(ebx & 1 << 5) == ("avx2" in cpu_features.flags())

    def test_asking_often_leaves_nothing_open():
        before = len(list(Path("/proc/self/maps").read_text().splitlines()))
        for _ in range(200):
            cpu_features._run_cpuid(0, 0)
        after = len(list(Path("/proc/self/maps").read_text().splitlines()))
        assert after - before < 50  # A leak would leave 200 mappings.


def test_the_name_of_a_cpu_is_read(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: A CPU @ 2.1 GHz\nflags\t\t: fpu\n")
    assert cpu_features.model_name(path) == "A CPU @ 2.1 GHz"
    assert cpu_features.model_name(tmp_path / "none") == "unknown CPU"
