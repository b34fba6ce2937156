import dataclasses

import pytest

from resnet.base.errors import UserError
from resnet.config.config import (
    Config,
    differences,
    load_config,
    save_config,
)
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import imagenet
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule

TPU = imagenet.TPU_90EP_24K
NUM_IMAGENET = 1_281_167
CLASSES = ("ant", "bee", "cat")


def resolved(recipe=TPU, num_train_examples=NUM_IMAGENET, **given) -> Config:
    return resolve(recipe, given, num_train_examples, CLASSES)


OF_RUN = {
    "model": "resnet18",
    "global_batch_size": 10,
    "batch_norm_momentum": 0.0,
    "optimizer": "lars",
    "clip_norm": 2.0,
    "ema_decay": 0.5,
    "accumulation_steps": 5,
    "eval_crop_fraction": 1.0,
    "eval_crop": "resize_then_crop",
    "precision": "auto",
    "seed": 2**63 - 1,
    "eval_batch_size": 1,
    "eval_every": "2",
    "stop_at_top1": 0.75,
    "stop_after_steps": 3,
    "recalibration_batches": 3,
    "log_step_count_steps": 1,
    "checkpoint_every": "4",
    "keep_checkpoints": 1,
    "num_parallel_calls": 3,
    "shard_by": "file",
    "on_bad_record": "skip",
    "record_log": "log",
    "decoded_cache_mb": 5,
    "first_phase": "train",
    "initial_weights": "other",
    "model_dir": "model",
    "data_dir": "data",
}
OF_PHASE = {
    "momentum": 0.5,
    "weight_decay": 0.0,
    "label_smoothing": 0.25,
    "augmentation": "none",
    "min_crop_area": 0.5,
    "random_augment": 9.0,
    "mixup": 0.25,
    "cutmix": 1.0,
}


def test_given_values_win():
    config = resolved(
        **OF_RUN,
        **OF_PHASE,
        image_size=32,
        train_steps=7,
        warmup_steps=3,
        base_learning_rate=0.0625,
        peak_learning_rate=0.125,
    )
    assert {name: getattr(config, name) for name in OF_RUN} == OF_RUN
    (phase,) = config.phases
    assert {name: getattr(phase, name) for name in OF_PHASE} == OF_PHASE
    assert config.image_size == phase.image_size == 32
    assert config.train_steps == phase.num_steps == 7
    assert phase.schedule.warmup_length == 3
    assert phase.schedule.decay_end == 7
    assert (phase.schedule.init_value, phase.schedule.peak_value) == (0.0625, 0.125)
    assert resolved(mode="train").mode == "train"


def test_none_counts_as_not_given():
    names = ("train_steps", "train_epochs", "weight_decay", "model", "warmup_epochs")
    assert resolved(**dict.fromkeys(names)) == resolved()


def test_an_override_of_no_setting_is_an_error_of_the_program():
    with pytest.raises(TypeError, match="no setting 'momentun' to override"):
        resolved(momentun=0.8)


def test_what_decides_the_result_differs_by_name():
    assert differences(resolved(), resolved(seed=1, weight_decay=0.5)) == [
        "seed=0, now 1",
        "weight_decay=5e-05, now 0.5",
    ]


def test_another_length_differs_in_all_that_it_changes():
    assert differences(resolved(), resolved(train_steps=5000)) == [
        "train_steps=4680, now 5000",
        "num_steps=4680, now 5000",
        "decay_end=4680, now 5000",
    ]


def test_phases_differ_by_their_names():
    recipe = imagenet.COLLAPSE_72EP_4K
    *others, last = recipe.phases
    milder = dataclasses.replace(last, weight_decay=1e-4)
    now = dataclasses.replace(recipe, phases=(*others, milder))
    assert differences(resolved(recipe), resolved(now)) == [
        "collapse: weight_decay=0.0002, now 0.0001"
    ]
    fewer = dataclasses.replace(recipe, phases=tuple(others))
    found = differences(resolved(recipe), resolved(fewer))
    assert found[:2] == [
        "phases=init, cyc1, cyc2, cyc3, collapse, now init, cyc1, cyc2, cyc3",
        "train_steps=22610, now 21050",
    ]
    assert "collapse: num_steps=1560, now None" in found


def test_phases_in_another_order_are_another_run():
    recipe = imagenet.COLLAPSE_94EP_14K
    hundred_steps = imagenet.epochs_of(100, recipe.global_batch_size)
    one_phase, other_phase = (
        dataclasses.replace(
            part, epochs=hundred_steps, schedule=Schedule(peak_value=peak)
        )
        for part, peak in zip(recipe.phases, (1.0, 0.5), strict=True)
    )
    one, other = (
        resolved(dataclasses.replace(recipe, phases=order))
        for order in ((one_phase, other_phase), (other_phase, one_phase))
    )
    assert differences(one, other) == ["phases=linear, collapse, now collapse, linear"]


def test_the_size_of_images_differs_for_training_and_for_evaluation():
    assert differences(resolved(), resolved(image_size=128)) == [
        "image_size=224, now 128",
        "train: image_size=224, now 128",
    ]
    (part,) = TPU.phases
    part = dataclasses.replace(part, image_size=224)
    other = dataclasses.replace(TPU, image_size=256, phases=(part,))
    found = differences(resolved(), resolved(other))
    assert found == ["image_size=224, now 256"]


def test_what_does_not_decide_the_result_may_change():
    changed = resolved(
        data_dir="elsewhere",
        model_dir="other",
        eval_batch_size=7,
        eval_every="3",
        stop_at_top1=0.5,
        stop_after_steps=20,
        recalibration_batches=7,
        log_step_count_steps=1,
        checkpoint_every="2",
        keep_checkpoints=1,
        num_parallel_calls=9,
        on_bad_record="skip",
        record_log="log",
    )
    assert differences(resolved(), changed) == []
    assert differences(resolved(), resolved(mode="train")) == []


def test_where_a_run_begins_and_how_it_reads_and_steps_decide_the_result():
    changed = resolved(
        augmentation="pad_crop_flip_cutout",
        eval_crop="crop_then_resize",
        shard_by="file",
        accumulation_steps=2,
        ema_decay=0.5,
        first_phase="train",
        initial_weights="other",
        model_dir="model",
    )
    assert differences(resolved(), changed) == [
        "eval_crop=resize_then_crop, now crop_then_resize",
        "ema_decay=0.0, now 0.5",
        "accumulation_steps=1, now 2",
        "shard_by=example, now file",
        "first_phase=, now train",
        "initial_weights=, now other",
        "augmentation=random_resized_crop_2018_02, now pad_crop_flip_cutout",
    ]


def test_with_or_without_a_decoded_cache_decides_the_result_and_its_size_does_not():
    without, small, large = (resolved(decoded_cache_mb=size) for size in (0, 5, 9))
    assert differences(without, small) == ["decoded_cache_mb=0, now 5"]
    assert differences(small, without) == ["decoded_cache_mb=5, now 0"]
    assert differences(small, large) == []


def test_a_config_is_read_back_as_it_was_written(tmp_path):
    config = resolved(model_dir=str(tmp_path / "a" / "model"), seed=2**63 - 1)
    save_config(config)
    assert load_config(config.model_dir) == config


def test_the_records_of_a_config_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolved(model_dir=str(tmp_path / "model"), data_dir="records")
    save_config(config)
    assert load_config(config.model_dir).data_dir == str(tmp_path / "records")


def test_phases_are_read_back_as_they_were_written(tmp_path):
    rates = Schedule(peak_value=1.0, decay="steps", boundaries=(1.0, 2.0))
    recipe = Recipe(
        name="mine",
        source="here",
        model="resnet18",
        image_size=32,
        global_batch_size=4,
        num_train_examples=40,
        phases=(
            RecipePhase(epochs=3, schedule=rates, name="first"),
            RecipePhase(epochs=1, name="second"),
        ),
    )
    config = resolved(recipe, 40, model_dir=str(tmp_path))
    first, second = config.phases
    assert first.schedule.boundaries == (10, 20)
    assert second.schedule is None
    save_config(config)
    assert load_config(config.model_dir) == config


@pytest.mark.parametrize(
    ("old", "new"),
    [('"seed"', '"sead"'), ("tpu", "\udcff"), ('"momentum": 0.9', '"impulse": 0.9')],
)
def test_a_damaged_config_is_refused(tmp_path, old, new):
    save_config(resolved(model_dir=str(tmp_path)))
    path = tmp_path / "config.json"
    text = path.read_text().replace(old, new)
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match="json must hold the settings of a training"):
        load_config(str(tmp_path))


def test_a_trial_stops_after_its_first_steps_with_the_schedules_of_the_whole_run():
    trial = resolved(stop_after_steps=20)
    assert (trial.last_step, trial.train_steps) == (20, 4680)
    assert trial.phases == resolved().phases
    assert resolved().last_step == 4680
    assert resolved(stop_after_steps=5000).last_step == 4680
    collapse = imagenet.COLLAPSE_72EP_4K
    later = resolved(collapse, first_phase="collapse", stop_after_steps=20)
    assert later.last_step == 21_050 + 20
