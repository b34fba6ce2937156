import platform
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
GRAVITON = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd sve bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
AMX = frozenset({"fpu", "amx_tile", "amx_bf16"})


@pytest.mark.parametrize(
    ("text", "flags", "name"),
    [
        (
            CPUINFO,
            {"fpu", "vme", "avx512f", "amx_tile", "amx_bf16"},
            "Some CPU: the best",
        ),
        (GRAVITON, {"fp", "asimd", "sve", "bf16"}, "Neoverse V1"),
        ("Features\t: fp\nCPU part\t: 0xfff\n", {"fp"}, "0xfff"),
        ("", set(), "unknown CPU"),
        (None, set(), "unknown CPU"),
    ],
)
def test_flags_and_name_are_those_of_the_first_processor(tmp_path, text, flags, name):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert cpu_features.flags(path) == flags
    assert cpu_features.model_name(path) == name


@pytest.mark.parametrize(
    ("features", "answer", "is_hidden"),
    [
        (frozenset({"avx512f"}), AssertionError(), False),  # Isn't asked.
        (AMX, (0x04002000, 0x00080040, 0x10, 0), False),  # A Sapphire Rapids.
        (AMX, (0, 0, 0, 0), True),
        (AMX, PermissionError("no executable pages here"), True),
    ],
)
def test_amx_is_hidden_where_the_processor_describes_no_tiles(
    features, answer, is_hidden
):
    def cpuid(leaf, subleaf):
        assert (leaf, subleaf) == (0x1D, 1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert cpu_features.amx_is_hidden(features, cpuid) is is_hidden


def test_another_architecture_cannot_be_asked(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu_features.amx_is_hidden(AMX)


if platform.machine() == "x86_64":

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
