import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.base.errors import UserError
from resnet.base.settings import declarations, value_type
from resnet.config.config import (
    Config,
    differences,
    load_config,
    refuse_other,
    save_config,
)
from resnet.config.recipes import imagenet
from resnet.config.resolve import OVERRIDABLE, resolve

TPU = imagenet.TPU_90EP_24K
NUM_IMAGENET = 1_281_167
CLASSES = ("ant", "bee", "cat")
LENGTHS = ("num_steps", "decay_end")


def resolved(recipe=TPU, num_train_examples=NUM_IMAGENET, **overrides) -> Config:
    return resolve(recipe, overrides, num_train_examples, CLASSES)


DECLARED = {
    name: declaration
    for name, declaration in declarations(*OVERRIDABLE).items()
    if declaration.bounds or declaration.names
}


def values_of(name: str) -> st.SearchStrategy[object]:
    """Draws values that the declaration of a setting allows."""
    declaration = DECLARED[name]
    if not declaration.bounds:
        return st.sampled_from(declaration.names)
    (kind, *_) = (kind for kind in OVERRIDABLE if name in kind.__dataclass_fields__)
    low, high = declaration.bounds
    if value_type(kind, name) is int:
        return st.integers(int(low), int(min(high, 2**62)))
    return st.floats(low, min(high, 1e6))


@settings(max_examples=60)
@given(st.data(), st.sets(st.sampled_from(sorted(DECLARED)), max_size=3))
def test_overrides_win_and_are_read_back(tmp_path_factory, data, names):
    overrides: dict[str, Any] = {name: data.draw(values_of(name)) for name in names}
    overrides["model_dir"] = str(tmp_path_factory.mktemp("model"))
    try:
        config = resolved(**overrides)
    except UserError:  # They don't fit together.
        return
    for values in (config, *config.phases):
        for name in names & set(vars(values)):
            assert getattr(values, name) == overrides[name]
    save_config(config)
    assert load_config(config.model_dir) == config


def test_a_folder_in_or_above_that_of_a_run_is_answered_with_the_run(tmp_path):
    save_config(resolved(model_dir=str(tmp_path / "all/run")))
    for other in ("all", "all/run/checkpoints", "all/run/checkpoints/step-1"):
        with pytest.raises(UserError, match=f"such as {tmp_path}/all/run"):
            load_config(str(tmp_path / other))


def test_none_counts_as_not_given():
    names = ("train_steps", "train_epochs", "weight_decay", "model", "warmup_epochs")
    assert resolved(**dict.fromkeys(names)) == resolved()


def test_an_override_of_no_setting_is_an_error_of_the_program():
    with pytest.raises(TypeError, match="no setting 'momentun' to override"):
        resolved(momentun=0.8)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            {},
            {"seed": 1, "weight_decay": 0.5},
            ["seed=0, now 1", "weight_decay=5e-05, now 0.5"],
        ),
        (
            {},
            {"train_steps": 5000},
            [f"{name}=4680, now 5000" for name in ("train_steps", *LENGTHS)],
        ),
        # In evaluation and in training.
        (
            {},
            {"image_size": 128},
            ["image_size=224, now 128", "train: image_size=224, now 128"],
        ),
        # With or without a cache decides, its size doesn't.
        ({}, {"decoded_cache_mb": 5}, ["decoded_cache_mb=0, now 5"]),
        ({"decoded_cache_mb": 5}, {}, ["decoded_cache_mb=5, now 0"]),
        ({"decoded_cache_mb": 5}, {"decoded_cache_mb": 9}, []),
    ],
)
def test_what_decides_the_result_differs_by_name(old, new, expected):
    assert differences(resolved(**old), resolved(**new)) == expected


def test_a_run_of_another_length_is_named_by_its_steps_and_epochs():
    old, new = resolved(train_steps=4680), resolved(train_steps=5000)
    with pytest.raises(UserError) as refused:
        refuse_other(old, new)
    for words in ("4,680 steps (89.77 epochs)", "5,000 steps (95.91", "--train_epochs"):
        assert words in str(refused.value)
    with pytest.raises(
        UserError, match=r"\(seed=0, now 1; train_steps=4680, now 5000;"
    ):
        refuse_other(old, resolved(train_steps=5000, seed=1))


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


def test_what_does_not_decide_the_result_may_change():
    declared = declarations(Config)
    free = [name for name, of in declared.items() if not of.decides_the_result]
    assert {"data_dir", "mode", "eval_every", "exchange"} <= set(free)
    config = resolved()
    changes: dict[str, Any] = dict.fromkeys(free, "another")
    assert differences(config, dataclasses.replace(config, **changes)) == []


def test_the_records_of_a_config_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolved(model_dir=str(tmp_path / "model"), data_dir="records")
    save_config(config)
    assert load_config(config.model_dir).data_dir == str(tmp_path / "records")


def test_a_trial_stops_after_its_first_steps_with_the_schedules_of_the_whole_run():
    trial = resolved(stop_after_steps=20)
    assert (trial.last_step, trial.train_steps) == (20, 4680)
    assert trial.phases == resolved().phases
    assert resolved().last_step == 4680
    assert resolved(stop_after_steps=5000).last_step == 4680
    collapse = imagenet.COLLAPSE_72EP_4K
    later = resolved(collapse, first_phase="collapse", stop_after_steps=20)
    assert later.last_step == 21_050 + 20
