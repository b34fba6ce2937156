"""How many examples each rank gets at a time, and what is refused."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base.errors import UserError
from resnet.config.config import Config
from resnet.config.recipes import digits, imagenet
from resnet.config.resolve import resolve
from resnet.config.rules import check_ranks


def resolved(
    recipe=imagenet.TPU_90EP_24K, num_train_examples=1_281_167, **given
) -> Config:
    return resolve(recipe, given, num_train_examples, ("ant", "bee", "cat"))


def config_with(**changes) -> Config:
    return dataclasses.replace(resolved(), **changes)


@given(batch=st.integers(1, 10**6), num_ranks=st.integers(1, 10**4))
def test_batches_that_ranks_cannot_share_are_refused_with_ones_that_they_can(
    batch, num_ranks
):
    config = config_with(global_batch_size=batch)
    if batch % num_ranks == 0:
        check_ranks(config, num_ranks)
        return
    with pytest.raises(UserError) as caught:
        check_ranks(config, num_ranks)
    sentence = str(caught.value)
    assert f"train_batch_size={batch}, {num_ranks} ranks" in sentence
    suggested = sentence.rpartition("Use ")[2].rstrip(".").split(" or ")
    for size in map(int, suggested):
        assert size > 0
        assert abs(size - batch) < num_ranks
        check_ranks(config_with(global_batch_size=size), num_ranks)


def test_the_suggested_batches_are_those_next_to_the_one_given():
    with pytest.raises(UserError, match=r"Use 248 or 252\."):
        check_ranks(config_with(global_batch_size=250), 4)
    with pytest.raises(UserError, match=r"Use 4\."):
        check_ranks(config_with(global_batch_size=3), 4)


def test_ranks_share_the_parts_that_a_step_is_accumulated_over():
    config = config_with(global_batch_size=24, accumulation_steps=3)
    check_ranks(config, 4)
    with pytest.raises(UserError) as caught:
        check_ranks(config, 5)
    assert str(caught.value) == (
        "--train_batch_size must be a multiple of the number of ranks times"
        " --accumulation_steps=3; got train_batch_size=24, 5 ranks. Use 15 or 30."
    )


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_examples_that_are_mixed_come_in_pairs(name):
    mixed = resolved(global_batch_size=24, accumulation_steps=2, **{name: 0.2})
    check_ranks(mixed, 3)  # 4 on each rank in each part.
    with pytest.raises(UserError, match=r"even number of examples on each rank.* 3\."):
        check_ranks(mixed, 4)
    plain = resolved(global_batch_size=24, accumulation_steps=2)
    check_ranks(plain, 4)


def test_one_small_image_is_too_little_for_batch_normalization():
    small = resolved(recipe=digits.DIGITS, global_batch_size=8)
    check_ranks(small, 4)
    for config, ranks in [
        (small, 8),
        (dataclasses.replace(small, accumulation_steps=4), 2),
    ]:
        with pytest.raises(UserError, match="needs at least two values, and the last"):
            check_ranks(config, ranks)
    frozen = dataclasses.replace(small.phases[0], freeze_batch_norm=True)
    check_ranks(dataclasses.replace(small, phases=(frozen,)), 8)
    check_ranks(dataclasses.replace(small, model="resnet20"), 8)  # 8x8 features.
    check_ranks(config_with(global_batch_size=8), 8)  # 224 pixels.


def test_a_batch_larger_than_the_data_set_is_refused():
    with pytest.raises(UserError, match=r"train_batch_size=24576, 1000 examples"):
        check_ranks(resolved(num_train_examples=1000, warmup_steps=0), 1)
