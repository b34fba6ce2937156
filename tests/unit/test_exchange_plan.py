"""What --explain says about the exchange of gradients."""

import pytest

from resnet import resnet_main
from resnet.config.compression import CompressionSettings
from resnet.distributed import exchange_plan
from tests.in_process import run

MILLION = 1_000_000


def told(num_ranks: int, compress: str = "entiremodel", **given) -> str:
    compression = CompressionSettings(compress=compress, **given)
    return exchange_plan.describe(compression, [MILLION - 7, 7], num_ranks)


def test_bytes_are_told_compressed_and_dense():
    # With 4 ranks a dense all-reduce sends 2 x 3/4 of 4 MB; a message travels 3 times.
    assert told(4, method="terngrad") == (
        "terngrad as one vector: 4.0 MB of gradients a step become 200.0 kB, a factor"
        " of 20. Each message goes to all other ranks (all-gather): each of 4 ranks"
        " sends 600.0 kB instead of 6.0 MB without compression (all-reduce)."
    )


def test_one_rank_sends_nothing():
    text = told(1, compress="layerwise", ratio=0.01)
    assert text.startswith("topk variable by variable: 4.0 MB of gradients a step")
    assert text.endswith("One rank sends nothing.")


def test_more_bytes_than_without_compression_are_told():
    text = told(64, method="qsgd")
    assert "sends 70.9 MB instead of 7.9 MB" in text
    assert text.endswith(", which is more.")


def test_random_coordinates_are_summed():
    text = told(2, method="randomk", ratio=0.25)
    assert "each of 2 sends 1.0 MB instead of 4.0 MB" in text
    assert "all-gather" not in text


@pytest.mark.parametrize("method", ["thresholdv", "adaptivethreshold"])
def test_what_depends_on_the_gradients_is_told_as_that(method):
    text = told(3, method=method)
    assert "a message whose size depends on them" in text
    assert "sends its message 2 times, instead of 5.3 MB" in text
    assert "That is less if a message has less than 2.7 MB." in text


def test_the_program_tells_the_exchange_of_its_network():
    flags = ("--recipe=digits", "-c", "layerwise", "--method=randomk", "-K", "0.25")
    done = run(resnet_main, "--explain", "--model=resnet8", "--num_ranks=2", *flags)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    # ResNet-8 has 74,160 values in its convolutions, 480 in batch normalization and 650
    # in the classifier.
    assert "with 10 classes, randomk variable by variable: 301.2 kB" in words
    assert "each of 2 sends 75.3 kB instead of 301.2 kB" in words


def test_a_run_without_compression_tells_no_exchange():
    done = run(resnet_main, "--explain", "--recipe=digits", "--num_ranks=2")
    assert "exchange  " not in done.stdout
