"""The library of compiled ops, and whole batches with and without it."""

import logging
import shutil

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.config.recipe import EVAL_CROPS
from resnet.native import instruction_sets
from tests.unit.read_batches import assert_equal, evaluate, open_train, train

# Of normalized values: about 20 operations in another order, each of a number up to
# 255 * 1.5 that is rounded to 2**-24 of it, and a deviation of 57: 20 * 2.3e-5 / 57.
TOLERANCE = 2e-5


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "found no such file"), (b"no library", "can't be loaded")],
)
def test_without_a_library_stock_ops_are_used_after_a_warning(
    tmp_path, monkeypatch, caplog, content, words
):
    path = tmp_path / "libresnet_ops.so"
    if content:
        path.write_bytes(content)
    monkeypatch.setattr(native, "OPS_LIBRARY", path)
    with caplog.at_level(logging.WARNING):
        assert native.ops.__wrapped__() is None
    (record,) = caplog.records
    assert words in record.getMessage()
    assert str(path) in record.getMessage()


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (train, "augmentation", "random_resized_crop"),
        (train, "augmentation", "random_resized_crop_2018_02"),
        (train, "augmentation", "pad_crop_flip_cutout"),
        *((evaluate, "eval_crop", name) for name in EVAL_CROPS),
    ],
)
def test_batches_with_and_without_the_library_agree(
    numbered_set, make_config, monkeypatch, make, name, value
):
    config = make_config(
        13, "abcd", train_steps=5, global_batch_size=6, eval_crop_fraction=0.8
    )
    ours = make(open_train(numbered_set), config, **{name: value})
    monkeypatch.setattr(native, "ops", lambda: None)
    theirs = make(open_train(numbered_set), config, **{name: value})
    for batch, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(batch.images, other.images, rtol=0, atol=TOLERANCE)
    assert_equal(*([batch[1:] for batch in run] for run in (ours, theirs)))


class Kernels:
    """The kernels of a library on a CPU, both at their best."""

    def __init__(self, best: str) -> None:
        self.best = self.current = lambda: best


@pytest.mark.parametrize(
    ("has", "best", "said"),
    [
        ("AVX512_CORE_BF16", "AVX512_CORE_BF16", "yes, with AVX512_CORE_BF16"),
        (
            "AVX512_CORE_BF16",
            "AVX2",
            "yes, with AVX2, but not in bfloat16, because the library of compiled ops"
            " lacks the kernels for AVX512_CORE, which need GCC 10",
        ),
        ("NONE", "NONE", "only for reading, resizing, updates of weights"),
    ],
)
def test_what_a_cpu_and_a_library_allow_is_said(monkeypatch, has, best, said):
    flags = instruction_sets.CPU_FLAGS[has]
    monkeypatch.setattr(native.cpu_features, "flags", lambda: flags)
    monkeypatch.setattr(instruction_sets, "kernels", lambda library: Kernels(best))
    assert native.describe().startswith(f"compiled ops: {said}")


def test_an_installation_without_the_library_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "OPS_LIBRARY", tmp_path / "resnet/native/none.so")
    assert native.describe().startswith("compiled ops: no, because expected the lib")
    assert "built in a clone of the project" in native.describe()
    (tmp_path / "install").mkdir()
    (tmp_path / "install/build_native.sh").touch()
    assert f"run make venv in {tmp_path}." in native.describe()


def test_a_library_of_other_sources_is_not_used(monkeypatch, tmp_path):
    assert not native._why_outdated()
    sources = native.OPS_LIBRARY.parent
    clone = tmp_path / "resnet/native"
    (tmp_path / "install").mkdir()
    clone.mkdir(parents=True)
    script = sources.parents[1] / "install/build_native.sh"
    shutil.copy(script, tmp_path / "install")
    for source in [*sources.glob("*.cc"), *sources.glob("*.h")]:
        shutil.copy(source, clone)
    for suffix in ("so", "key"):
        shutil.copy(native.OPS_LIBRARY.with_suffix(f".{suffix}"), clone)
    monkeypatch.setattr(native, "OPS_LIBRARY", clone / "libresnet_ops.so")
    assert not native._why_outdated()
    (clone / "momentum.cc").write_text("// Changed.")
    assert "libresnet_ops.so was built from other sources. To build" in (
        native.describe()
    )
    (tmp_path / "install/build_native.sh").unlink()
    assert not native._why_outdated()


def test_a_library_for_another_tensorflow_is_not_used(monkeypatch, tmp_path):
    library = tmp_path / "libresnet_ops.so"
    shutil.copy(native.OPS_LIBRARY, library)
    shutil.copy(native.OPS_LIBRARY.with_suffix(".key"), tmp_path)
    monkeypatch.setattr(native, "OPS_LIBRARY", library)
    assert not native._why_outdated()
    built_with = tf.__version__
    monkeypatch.setattr(tf, "__version__", "2.21.99")
    words = f"was built with TensorFlow {built_with}, and this is 2.21.99"
    assert words in native.describe()
    assert native.ops.__wrapped__() is None
