import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import UserError
from resnet import config as configs
from resnet import recipes

TPU = recipes.TPU_90EP_24K
SMALL = dataclasses.replace(
    recipes.DIGITS,
    name="small",
    global_batch_size=64,
    train_epochs=12,
    warmup_epochs=1,
    base_learning_rate=0.01,
    peak_share=40.0,
)
NUM_IMAGENET = 1_281_167
CLASSES = ("ant", "bee", "cat")


def resolve(recipe=TPU, num_train_examples=NUM_IMAGENET, **given) -> configs.Config:
    return configs.resolve(recipe, given, num_train_examples, CLASSES)


def refusal(**given) -> str:
    with pytest.raises(UserError) as caught:
        resolve(**given)
    return str(caught.value)


def test_the_24k_recipe_on_imagenet_is_the_published_run():
    config = resolve()
    assert config.recipe == "tpu_90ep_24k"
    assert config.model == "resnet50"
    assert config.image_size == 224
    assert config.global_batch_size == 24_576
    assert config.train_steps == 4680
    assert config.warmup_steps == 260
    assert config.base_learning_rate == 0.1
    assert config.peak_learning_rate == pytest.approx(4.8, rel=1e-14)
    assert config.momentum == 0.9
    assert config.weight_decay == 5e-5
    assert config.batch_norm_decay == 0.95
    assert config.label_smoothing == 0.0
    assert config.augmentation == "random_resized_crop"
    assert config.eval_crop_fraction == 0.875
    assert config.eval_crop == "crop_then_resize"
    assert config.num_classes == 3
    assert config.class_names == CLASSES
    assert config.num_train_examples == NUM_IMAGENET


def test_the_epochs_of_the_published_run_are_a_little_less_than_90():
    config = resolve()
    assert config.steps_per_epoch == pytest.approx(52.1308, abs=5e-5)
    assert config.epoch(4680) == pytest.approx(89.774, abs=5e-4)
    assert config.epoch(0) == 0


def test_another_batch_scales_rate_and_steps():
    config = resolve(global_batch_size=8192)
    assert config.train_steps == 14_075  # 90 * 1,281,167 / 8192 = 14,075.3
    assert config.warmup_steps == 781  # 5 * 1,281,167 / 8192 = 781.96
    assert config.peak_learning_rate == pytest.approx(1.6)  # 0.5 * 0.1 * 32
    assert config.base_learning_rate == 0.1


def test_another_data_set_has_its_own_number_of_steps():
    config = resolve(num_train_examples=1_000_000)
    assert config.train_steps == 3662  # 90 * 1,000,000 / 24,576 = 3662.1
    assert config.warmup_steps == 203  # 203.5
    assert config.peak_learning_rate == pytest.approx(4.8)


def test_at_a_small_batch_the_warm_up_does_not_fall():
    config = resolve(global_batch_size=64)
    assert config.peak_learning_rate == pytest.approx(0.0125)  # 0.5 * 0.1 / 4
    assert config.base_learning_rate == config.peak_learning_rate


def test_a_small_recipe_keeps_its_rates_and_scales_its_steps():
    config = resolve(SMALL, num_train_examples=1437)
    assert config.train_steps == 269  # 12 * 1437 / 64 = 269.4
    assert config.warmup_steps == 22  # 22.45
    assert config.base_learning_rate == 0.01
    assert config.peak_learning_rate == pytest.approx(0.1)


def test_given_values_win():
    given = {
        "model": "resnet18",
        "image_size": 32,
        "global_batch_size": 10,
        "train_steps": 7,
        "warmup_steps": 3,
        "base_learning_rate": 0.25,
        "peak_learning_rate": 0.125,
        "momentum": 0.5,
        "weight_decay": 0.0,
        "batch_norm_decay": 0.0,
        "label_smoothing": 0.25,
        "augmentation": "none",
        "eval_crop_fraction": 1.0,
        "precision": "auto",
        "seed": 2**63 - 1,
        "mode": "train",
        "eval_batch_size": 1,
        "steps_per_eval": 2,
        "log_step_count_steps": 1,
        "checkpoint_every": "4",
        "keep_checkpoints": 1,
        "num_parallel_calls": 3,
        "eval_crop": "resize_then_crop",
        "shard_by": "file",
        "on_bad_record": "skip",
        "record_log": "log",
        "decoded_cache_mb": 5,
    }
    config = resolve(**given)
    for name, value in given.items():
        assert getattr(config, name) == value


def test_none_counts_as_not_given():
    names = ("train_steps", "train_epochs", "weight_decay", "model", "warmup_epochs")
    assert resolve(**dict.fromkeys(names)) == resolve()


def test_a_given_base_rate_is_kept_and_scaled_to_the_peak():
    config = resolve(global_batch_size=64, base_learning_rate=0.2)
    assert config.base_learning_rate == 0.2
    assert config.peak_learning_rate == pytest.approx(0.025)  # 0.5 * 0.2 / 4


def test_epochs_given_become_steps():
    config = resolve(SMALL, 1000, train_epochs=2.5, warmup_epochs=0.5)
    assert config.train_steps == 39  # 2.5 * 1000 / 64 = 39.06
    assert config.warmup_steps == 7  # 7.8


def test_epochs_given_win_over_the_published_steps():
    config = resolve(train_epochs=90.0)
    assert config.train_steps == 4691  # 90 * 1,281,167 / 24,576 = 4691.77


def test_whole_epochs_of_whole_batches_have_whole_steps():
    # 100 * 29 / 100 is 29 steps; 29 / 100 is a little less than 0.29 in a float.
    config = resolve(SMALL, 29, global_batch_size=100, train_epochs=100.0)
    assert config.train_steps == 29


def test_training_is_at_least_one_step():
    config = resolve(SMALL, 5, train_epochs=0.1, warmup_steps=0)
    assert config.train_steps == 1


@pytest.mark.parametrize("what", ["train", "warmup"])
def test_steps_and_epochs_exclude_each_other(what):
    sentence = refusal(**{f"{what}_steps": 300, f"{what}_epochs": 1.0})
    assert f"--{what}_steps and --{what}_epochs exclude each other" in sentence


NUMBERS = {
    # Field: (flag, refused values besides NaN and infinity).
    "image_size": ("image_size", [31, 0, -1, 1025]),
    "global_batch_size": ("train_batch_size", [0, -1]),
    "eval_batch_size": ("eval_batch_size", [0, -5]),
    "train_steps": ("train_steps", [0, -1]),
    "train_epochs": ("train_epochs", [0.0, -1.0]),
    "warmup_steps": ("warmup_steps", [-1]),
    "warmup_epochs": ("warmup_epochs", [-0.5]),
    "base_learning_rate": ("base_learning_rate", [-0.1]),
    "peak_learning_rate": ("peak_learning_rate", [0.0, -0.1]),
    "momentum": ("momentum", [-0.1, 1.0]),
    "weight_decay": ("weight_decay", [-1e-9]),
    "batch_norm_decay": ("bn_momentum", [-0.1, 1.0]),
    "label_smoothing": ("label_smoothing", [-0.1, 1.0]),
    "eval_crop_fraction": ("eval_crop_fraction", [0.0, -1.0, 1.01]),
    "seed": ("seed", [-1, 2**63]),
    "steps_per_eval": ("steps_per_eval", [-1]),
    "log_step_count_steps": ("log_step_count_steps", [0, -1]),
    "keep_checkpoints": ("keep_checkpoints", [0, -1]),
    "num_parallel_calls": ("num_parallel_calls", [-1, 4097]),
    "decoded_cache_mb": ("decoded_cache_mb", [-1]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, (_, values) in NUMBERS.items()
        for value in [*values, math.nan, math.inf, -math.inf]
    ],
)
def test_a_number_out_of_its_range_is_refused_by_its_flag(name, value):
    sentence = refusal(**{name: value})
    assert sentence.startswith(f"--{NUMBERS[name][0]} must be ")
    assert sentence.endswith(f"got {value}.")


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "augmentation",
        "precision",
        "mode",
        "eval_crop",
        "shard_by",
        "on_bad_record",
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    sentence = refusal(**{name: "mean"})
    assert sentence.startswith(f"--{name} must be one of ")
    assert sentence.endswith("got mean.")
    for known in configs._NAMES[name]:
        assert known in sentence


def test_an_interval_that_is_none_is_refused_by_its_flag():
    sentence = refusal(checkpoint_every="daily")
    assert sentence.startswith("--checkpoint_every must be ")


def test_all_problems_are_named_at_once():
    sentence = refusal(
        global_batch_size=0,
        momentum=math.nan,
        model="vgg",
        train_steps=1,
        train_epochs=1.0,
    )
    for part in ("--train_batch_size", "--momentum", "--model", "exclude each other"):
        assert part in sentence


def test_a_warm_up_as_long_as_the_training_is_refused():
    assert "the warm-up must end before" in refusal(train_steps=260)
    assert resolve(train_steps=261).warmup_steps == 260


def config_with(**changes) -> configs.Config:
    return dataclasses.replace(resolve(), **changes)


@given(batch=st.integers(1, 10**6), num_ranks=st.integers(1, 10**4))
def test_batches_that_ranks_cannot_share_are_refused_with_ones_that_they_can(
    batch, num_ranks
):
    config = config_with(global_batch_size=batch)
    if batch % num_ranks == 0:
        configs.check_ranks(config, num_ranks)
        return
    with pytest.raises(UserError) as caught:
        configs.check_ranks(config, num_ranks)
    sentence = str(caught.value)
    assert f"train_batch_size={batch}, {num_ranks} ranks" in sentence
    suggested = sentence.rpartition("Use ")[2].rstrip(".").split(" or ")
    for size in map(int, suggested):
        assert size > 0
        assert abs(size - batch) < num_ranks
        configs.check_ranks(config_with(global_batch_size=size), num_ranks)


def test_the_suggested_batches_are_those_next_to_the_one_given():
    with pytest.raises(UserError, match=r"Use 248 or 252\."):
        configs.check_ranks(config_with(global_batch_size=250), 4)
    with pytest.raises(UserError, match=r"Use 4\."):
        configs.check_ranks(config_with(global_batch_size=3), 4)


def test_equal_settings_do_not_differ():
    assert configs.differences(resolve(), resolve()) == []


def test_what_decides_the_result_differs_by_name():
    assert configs.differences(resolve(), resolve(seed=1, weight_decay=0.5)) == [
        "weight_decay=5e-05, now 0.5",
        "seed=0, now 1",
    ]


def test_what_does_not_decide_the_result_may_change():
    changed = resolve(
        data_dir="elsewhere",
        model_dir="other",
        mode="train",
        eval_batch_size=7,
        steps_per_eval=3,
        log_step_count_steps=1,
        checkpoint_every="2",
        keep_checkpoints=1,
        num_parallel_calls=9,
        on_bad_record="skip",
        record_log="log",
    )
    assert configs.differences(resolve(), changed) == []


def test_which_records_a_rank_reads_and_how_they_are_cropped_decide_the_result():
    changed = resolve(
        augmentation="pad_crop_flip_cutout",
        eval_crop="resize_then_crop",
        shard_by="file",
    )
    assert configs.differences(resolve(), changed) == [
        "augmentation=random_resized_crop, now pad_crop_flip_cutout",
        "eval_crop=crop_then_resize, now resize_then_crop",
        "shard_by=example, now file",
    ]


def test_with_or_without_a_decoded_cache_decides_the_result_and_its_size_does_not():
    without, small, large = (resolve(decoded_cache_mb=size) for size in (0, 5, 9))
    assert configs.differences(without, small) == ["decoded_cache_mb=0, now 5"]
    assert configs.differences(small, without) == ["decoded_cache_mb=5, now 0"]
    assert configs.differences(small, large) == []


def test_a_batch_larger_than_the_data_set_is_refused():
    with pytest.raises(UserError, match=r"train_batch_size=24576, 1000 examples"):
        configs.check_ranks(resolve(num_train_examples=1000, train_steps=9999), 1)


def test_a_config_is_read_back_as_it_was_written(tmp_path):
    config = resolve(model_dir=str(tmp_path / "a" / "model"), seed=2**63 - 1)
    configs.save(config)
    assert configs.load(config.model_dir) == config


def test_a_missing_config_is_a_sentence_with_its_path(tmp_path):
    with pytest.raises(UserError, match="there is none") as caught:
        configs.load(str(tmp_path))
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "5",
        lambda text: "{}",
        lambda text: json.dumps({**json.loads(text), "unknown": 1}),
        lambda text: text.replace('"seed"', '"sead"'),
        lambda text: text.replace("tpu", "\udcff"),
    ],
    ids=["empty", "cut", "list", "number", "nothing", "more", "renamed", "no UTF-8"],
)
def test_a_damaged_config_is_refused(tmp_path, damage):
    config = resolve(model_dir=str(tmp_path))
    configs.save(config)
    path = tmp_path / "config.json"
    path.write_text(damage(path.read_text()), errors="surrogateescape")
    with pytest.raises(UserError, match="must be the settings of a training run"):
        configs.load(str(tmp_path))
