"""The script that compiles the ops, with stand-ins for compiler and TensorFlow."""

import shutil
import subprocess

import pytest

from tests.jobs.stub_programs import ROOT, Clone

# Of all sources, those that are compiled for several instruction sets.
KERNELS = {
    *("batch_norm_grad_kernels", "batch_norm_kernels", "conv_gemm", "kernel_set"),
    *("winograd", "winograd_gradient"),
}
FMA_PRODUCTS = {"gemm_fma", "gemm_fma_transposed"}
BF16_PRODUCTS = {"gemm_bf16", "gemm_bf16_transposed"}
LOOPS = {"momentum_kernels", "activation_kernels", "pooling_kernels"}
VECTORS = KERNELS | FMA_PRODUCTS | LOOPS
AVX512 = ("AVX512", "AVX512_BF16")
NO_VECTORS = {"kernel_set"} | LOOPS


@pytest.fixture
def clone(tmp_path):
    """Returns a clone with an environment in `.venv`."""
    made = Clone(tmp_path)
    venv = made.folder / ".venv"
    made.run_python("-m", "venv", str(venv))
    package = venv / "lib/python3.11/site-packages/tensorflow-2.21.0.dist-info"
    package.mkdir()
    made.calls()
    return made


def linked_with(clone) -> list[str]:
    """Returns the words that the compiler got when it linked the library."""
    text = (clone.folder / "resnet/native/libresnet_ops.so").read_text()
    return [line.removeprefix("# ") for line in text.splitlines()[1:]]


def objects(clone) -> dict[str, set[str]]:
    """Returns the names of the objects of each instruction set in the library."""
    made: dict[str, set[str]] = {}
    for word in linked_with(clone):
        if word.endswith(".o"):
            name, instruction_set, _ = word.rpartition("/")[2].split(".")
            made.setdefault(instruction_set, set()).add(name)
    return made


def all_sources(clone) -> set[str]:
    return {path.stem for path in clone.folder.glob("resnet/native/*.cc")}


def test_folders_with_spaces_are_one_word_each(clone):
    done = clone.run("build_native.sh", ".venv")
    assert (done.returncode, done.stderr) == (0, "")
    tensorflow = f"{clone.folder}/.venv/tensor flow"
    assert linked_with(clone)[-2:] == [
        f"-L{tensorflow}",
        "-l:libtensorflow_framework.so.2",
    ]
    assert objects(clone) == {
        "ANY_CPU": all_sources(clone) - VECTORS - BF16_PRODUCTS | NO_VECTORS,
        "AVX2": VECTORS,
        "AVX512": VECTORS,
        "AVX512_BF16": KERNELS | BF16_PRODUCTS,
    }


@pytest.mark.parametrize("words", ["g++ -pipe", "ccache g++"])
def test_a_compiler_may_have_options_and_a_launcher(clone, words):
    clone.program("ccache", '#!/bin/sh\nexec "$@"\n')
    done = clone.run("build_native.sh", ".venv", CXX=words)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("-pipe" in linked_with(clone)) == ("-pipe" in words)


def test_a_compiler_may_lie_in_a_folder_with_a_space(clone):
    (clone.programs / "my tools").mkdir()
    compiler = (clone.programs / "g++").rename(clone.programs / "my tools/g++")
    done = clone.run("build_native.sh", ".venv", CXX=str(compiler))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("macros", "words", "lacking"),
    [
        ("-D__x86_64__=1 -D__clang__=1 -U__GNUC__ -D__GNUC__=4", "", set()),
        ("-D__x86_64__=1 -U__GNUC__ -D__GNUC__=9", "it is older", set(AVX512)),
        ("-U__x86_64__", "it is not for x86_64", {"AVX2", *AVX512}),
    ],
)
def test_a_compiler_that_cannot_do_all_builds_what_it_can(
    clone, macros, words, lacking
):
    for said in (words, ""):  # A second call has nothing to do.
        done = clone.run("build_native.sh", ".venv", MACROS=macros)
        assert done.returncode == 0
        assert said.removeprefix("it ") in done.stderr
        assert done.stderr.count("\n") == bool(said)
    assert {"ANY_CPU", "AVX2", *AVX512} - objects(clone).keys() == lacking


@pytest.mark.parametrize("is_clang", [True, False])
@pytest.mark.parametrize(
    ("option", "is_for_clang"),
    [
        ("-Wno-maybe-uninitialized", False),
        ("-fno-fast-math", False),
        ("-ffp-model=precise", True),
    ],
)
def test_an_option_of_one_compiler_is_not_for_the_other(
    clone, option, is_for_clang, is_clang
):
    macros = "-D__x86_64__=1 " + ("-D__clang__=1" if is_clang else "-U__clang__")
    done = clone.run("build_native.sh", ".venv", MACROS=macros, REFUSED=option)
    # 123 is xargs's, whose command failed.
    assert done.returncode == (123 if is_clang == is_for_clang else 0)


def test_fast_math_does_not_compile():
    header = ROOT / "resnet/native/compression.h"
    command = ("g++", "-std=c++17", "-fsyntax-only", "-x", "c++", str(header))
    for options, is_compiled in ([], True), (["-ffast-math"], False):
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == is_compiled
        assert ("without -ffast-math" in done.stderr) != is_compiled


@pytest.mark.parametrize("compiler", [None, "g++ -pipe"])
def test_kernels_that_fail_leave_the_others_and_are_tried_again(clone, compiler):
    refused = "resnet/native/gemm_bf16.cc"  # Only compiled for AVX512_BF16.
    done = clone.run("build_native.sh", ".venv", CXX=compiler, REFUSED=refused)
    assert done.returncode == 0
    assert "the kernels for AVX512_BF16 did not compile" in done.stderr
    assert objects(clone).keys() == {"ANY_CPU", "AVX2", "AVX512"}
    done = clone.run("build_native.sh", ".venv")
    assert (done.returncode, done.stderr) == (0, "")
    assert objects(clone).keys() == {"ANY_CPU", "AVX2", *AVX512}


def test_a_library_stays_unless_another_compiler_is_named(clone):
    shutil.copy(clone.programs / "g++", clone.programs / "other")
    library = clone.folder / "resnet/native/libresnet_ops.so"
    clone.run("build_native.sh", ".venv", CXX="other")
    first = library.stat()
    for name in (None, "other"):
        done = clone.run("build_native.sh", ".venv", CXX=name)
        assert (done.returncode, done.stderr) == (0, "")
        assert library.stat() == first
    assert clone.run("build_native.sh", ".venv", CXX="g++").returncode == 0
    assert library.stat() != first


def test_without_a_compiler_a_library_of_these_sources_stays(clone):
    clone.run("build_native.sh", ".venv")
    library = clone.folder / "resnet/native/libresnet_ops.so"
    before = library.stat()
    done = clone.run("build_native.sh", ".venv", CXX="/no/such/g++")
    assert (done.returncode, done.stderr) == (0, "")
    assert library.stat() == before


def test_a_library_of_other_sources_does_not_stay(clone):
    clone.run("build_native.sh", ".venv")
    (clone.folder / "resnet/native/one.h").write_text("// Changed.")
    done = clone.run("build_native.sh", ".venv", CXX="/no/such/g++")
    assert done.returncode == 1
    assert "'/no/such/g++' can't be run" in done.stderr
    assert not (clone.folder / "resnet/native/libresnet_ops.so").exists()


def test_the_ops_are_the_same_for_an_environment_by_another_path(clone, tmp_path):
    clone.run("build_native.sh", ".venv")
    (tmp_path / "link").symlink_to(clone.folder / ".venv")
    clone.calls()
    library = clone.folder / "resnet/native/libresnet_ops.so"
    before = library.stat()
    done = clone.run("build_native.sh", str(tmp_path / "link"))
    assert done.returncode == 0
    assert library.stat() == before
