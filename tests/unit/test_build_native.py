"""The script that compiles the ops, with stand-ins for compiler and TensorFlow."""

import pytest

from tests.unit.stub_programs import Clone

FOR_ANY_CPU = {
    "activation.o",
    *("compress_quantized.o", "compress_sparse.o", "cut_message.o"),
    "decode_messages.o",
    *("read_example.o", "resize_bicubic.o", "momentum.o", "server_update.o"),
}


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


def objects(clone) -> set[str]:
    words = linked_with(clone)
    return {word.rpartition("/")[2] for word in words if word.endswith(".o")}


def test_folders_with_spaces_are_one_word_each(clone):
    done = clone.run("build_native.sh", ".venv")
    assert (done.returncode, done.stderr) == (0, "")
    tensorflow = f"{clone.folder}/.venv/tensor flow"
    assert linked_with(clone)[-2:] == [
        f"-L{tensorflow}",
        "-l:libtensorflow_framework.so.2",
    ]
    assert len(objects(clone)) == len(list(clone.folder.glob("resnet/native/*.cc")))


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
    ("macros", "words"),
    [
        ("-D__x86_64__=1 -D__clang__=1", "it is clang"),
        ("-D__x86_64__=1 -U__GNUC__ -D__GNUC__=9", "it is older"),
        ("-U__x86_64__", "it is not for x86_64"),
    ],
)
def test_a_compiler_that_cannot_do_all_builds_what_it_can(clone, macros, words):
    done = clone.run("build_native.sh", ".venv", MACROS=macros)
    assert done.returncode == 0
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert objects(clone) == FOR_ANY_CPU
    done = clone.run("build_native.sh", ".venv", MACROS=macros)
    assert (done.returncode, done.stderr) == (0, "")


def test_ops_for_avx512_that_fail_leave_the_others_and_are_tried_again(clone):
    refused = "resnet/native/winograd.cc"
    done = clone.run("build_native.sh", ".venv", REFUSED=refused)
    assert done.returncode == 0
    assert "the ops for AVX-512 did not compile" in done.stderr
    assert objects(clone) == FOR_ANY_CPU
    done = clone.run("build_native.sh", ".venv")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(objects(clone)) > len(FOR_ANY_CPU)


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
