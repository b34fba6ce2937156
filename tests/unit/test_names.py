"""Which known names a mistaken one may stand for, and the sentence about it."""

import pytest

from resnet.base import cli, names
from resnet.base.errors import UserError
from resnet.config import command_line, recipe_file

KNOWN = ("train_epochs", "warmup_epochs", "model", "optimizer")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("epochs", ["train_epochs", "warmup_epochs"]),
        ("EPOCHS", ["train_epochs", "warmup_epochs"]),
        ("lr", ["peak"]),
        ("optimiser", ["optimizer"]),
        ("xyz", []),
        ("", []),
    ],
)
def test_the_nearest_are_a_synonym_else_those_with_its_words_else_the_similar(
    name, meant
):
    assert names.nearest(name, KNOWN, {"lr": "peak"}) == meant


def test_many_names_are_left_to_what_lists_them():
    many = [f"recipe_{number}" for number in range(30)]
    sentence = names.unknown("--recipe", "recipe_l", many, "--list_recipes")
    assert "one of the 30 names that --list_recipes lists; got recipe_l." in sentence
    assert "recipe_17" not in sentence
    assert names.unknown("--way", "c", ("a", "b"), "--help").startswith(
        "--way must be one of a, b; got c."
    )


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--epochs=3", "--train_epochs"),
        ("--lr=0.1", "--peak_learning_rate"),
        ("--batch_size=8", "--train_batch_size"),
        ("--wd=0.1", "--weight_decay"),
        ("--arch=resnet50", "--model"),
        ("--data=x", "--data_dir"),
        ("--num_worker=2", "--num_parallel_calls"),
        ("--eval_evry=1epoch", "--eval_every"),
    ],
)
def test_a_flag_of_another_program_is_answered_with_this_ones(word, flag):
    with pytest.raises(UserError, match=rf"Did you mean {flag}( or --\w+)*\?"):
        cli.parse(["program", word], "", command_line.TRAINING)


def test_each_synonym_is_that_of_one_flag_and_no_flag_itself():
    entries = cli.entries(command_line.TRAINING)
    others = [word for e in entries for word in e.declaration.elsewhere.split()]
    assert len(others) == len(set(others))
    assert not set(others) & {entry.flag for entry in entries}


def test_a_misspelled_recipe_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"Did you mean imagenette_best or .*json"):
        recipe_file.get("imagenette_bset")
