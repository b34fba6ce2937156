"""What --explain says about the exchange of gradients."""

import pytest

from resnet import resnet_main
from resnet.config.compression import CompressionSettings
from resnet.exchange import plan as exchange_plan
from tests.in_process import run

MILLION = 1_000_000


def told(num_ranks: int, compress: str = "entiremodel", **given) -> str:
    compression = CompressionSettings(compress=compress, **given)
    return exchange_plan.describe(
        compression, [[MILLION // 1000, 999], [1000]], num_ranks
    )


def test_bytes_are_told_compressed_and_dense():
    # With 4 ranks a dense all-reduce sends 2 x 3/4 of 4 MB; a message travels 3 times.
    start = (
        "terngrad as one vector: 4.0 MB of gradients a step become 200.0 kB, a factor"
        " of 20."
    )
    instead = " instead of 6.0 MB without compression (all-reduce)"
    gathered = (
        " Each message goes to all other ranks (all-gather): each of 4 ranks sends"
        f" 600.0 kB{instead}."
    )
    in_slices = (
        " Each rank sums up one slice of all messages (slices): each of 4 ranks sends"
        f" 300.0 kB{instead}."
    )
    assert told(4, method="terngrad", exchange="allgather") == start + gathered
    assert told(4, method="terngrad", exchange="sliced") == start + in_slices
    assert told(4, method="terngrad") == (
        f"{start}{gathered}{in_slices} A measurement at the start decides."
    )


def test_one_rank_sends_nothing():
    text = told(1, compress="layerwise", ratio=0.01)
    assert text.startswith("topk variable by variable: 4.0 MB of gradients a step")
    assert text.endswith("One rank sends nothing.")


def test_more_bytes_than_without_compression_are_told():
    text = told(64, method="qsgd")
    assert "sends 70.9 MB, which is more, instead of 7.9 MB" in text
    assert "sends 2.2 MB instead of 7.9 MB" in text


def test_what_is_summed_is_told():
    text = told(2, method="randomk", ratio=0.25)
    assert "each of 2 sends 1.0 MB instead of 4.0 MB" in text
    assert "all-gather" not in text
    # A matrix of 1000 x 999 and a vector of 1000: 4 (2 (1000 + 999) + 1000) bytes.
    text = told(3, compress="layerwise", method="powersgd", powersgd_rank=2)
    assert "4.0 MB of gradients a step become 20.0 kB, a factor of 200" in text
    assert "each of 3 sends 26.7 kB instead of 5.3 MB" in text


def test_short_vectors_are_told_as_they_are_sent():
    whole = {"compress": "layerwise", "dense_below": 1001}
    # A matrix of 999,000 values by terngrad, 50 kB for each 250,000, and 4 kB whole:
    # 63 x 199.8 + 2 x 63 / 64 x 4.0 and 2 x 63 / 64 x 203.8.
    text = told(64, method="terngrad", **whole)
    assert "4.0 MB of gradients a step become 203.8 kB" in text
    assert "each of 64 ranks sends 12.6 MB, which is more, instead" in text
    assert "each of 64 ranks sends 401.3 kB instead" in text
    # 4 (10 * (1000 + 999) + 1000) bytes, and all of it whole.
    low_rank = {"method": "powersgd", "powersgd_rank": 10}
    assert "become 84.0 kB" in told(3, **low_rank, **whole)
    assert "become 4.0 MB, a factor of 1." in told(
        3, **low_rank, **{**whole, "dense_below": MILLION}
    )


def test_the_warmup_of_dgc_is_told():
    text = told(2, method="dgc", ratio=0.01)
    assert "become about 50.2 kB, a factor of 79.8 after a warm-up of 4 epoch" in text


@pytest.mark.parametrize("method", ["thresholdv", "adaptivethreshold"])
def test_what_depends_on_the_gradients_is_told_as_that(method):
    text = told(3, method=method)
    assert "a message whose size depends on them" in text
    assert "sends 2 times its message instead of 5.3 MB" in text
    assert "sends 1.33 times its message instead of 5.3 MB" in text


def test_the_program_tells_the_exchange_of_its_network():
    flags = ("--recipe=digits", "-c", "layerwise", "--method=randomk", "-K", "0.25")
    done = run(resnet_main, "--explain", "--model=resnet8", "--num_ranks=2", *flags)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    # ResNet-8 has 74,160 values in its convolutions, 480 in batch normalization and 650
    # in the classifier.
    assert "with 10 classes, randomk variable by variable: 301.2 kB" in words
    assert "each of 2 sends 75.3 kB instead of 301.2 kB" in words


def test_the_program_takes_the_classes_of_the_data(records):
    flags = ("--recipe=digits", "--train_batch_size=8", "-c", "layerwise")
    given = ("--model=resnet8", f"--data_dir={records}", *flags)
    done = run(resnet_main, "--explain", *given)
    assert done.returncode == 0, done.stderr
    assert "with 3 classes," in done.stdout


def test_a_run_without_compression_tells_no_exchange():
    done = run(resnet_main, "--explain", "--recipe=digits", "--num_ranks=2")
    assert "exchange  " not in done.stdout
