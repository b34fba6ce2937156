"""What is told of a run before it starts, and of its differences from the recipe."""

import ast
import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resnet import resnet_main
from resnet.config import explain
from resnet.config.config import Derived
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import RECIPES, digits, imagenet, imagenette
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule
from tests.in_process import assert_refused, run

PROGRAM = Path(resnet_main.__file__)
COLLAPSE = imagenet.COLLAPSE_72EP_4K


def test_few_steps_from_other_weights_are_warned_of():
    weights = {"initial_weights": "FILE"}
    few, enough = (
        list(explain.warnings(derived(imagenette.FINETUNE, 1, images, **weights)))
        for images in (98, 9469)
    )
    assert not enough
    assert "the training has only 12 steps: give a smaller --train_bat" in few[0]


def derived(
    recipe: Recipe, num_ranks: int, examples: int = 0, **overrides: Any
) -> Derived:
    examples = examples or recipe.num_train_examples
    return Derived(resolve(recipe, overrides, examples, ("a", "b")), num_ranks)


def told(recipe: Recipe = COLLAPSE, num_ranks: int = 128, **overrides: Any) -> str:
    run = derived(recipe, num_ranks, **overrides)
    return explain.describe_run(recipe, overrides, run)


def words(*arguments: Any, **overrides: Any) -> str:
    """Returns the same without its breaks of lines."""
    return " ".join(told(*arguments, **overrides).split())


def row(text: str, name: str) -> list[str]:
    """Returns the rows that begin with a name, each as one line."""
    rows: list[str] = []
    is_in_row = False
    for line in text.splitlines():
        if is_in_row and line.startswith(" "):  # Its last column goes on.
            rows[-1] += " " + line.strip()
            continue
        is_in_row = line.split()[:1] == [name]
        if is_in_row:
            rows.append(line)
    return rows


def cases(table: str) -> list[tuple[str, list[str]]]:
    """Returns the commands of a table, and the indented lines behind each."""
    texts = re.split(r"\n(?=\S)", table.strip())
    lines = [text.split("\n") for text in texts]
    return [(command, [line.strip() for line in rest]) for command, *rest in lines]


def case(command: str) -> tuple[Recipe, dict[str, Any]]:
    """Returns recipe and overrides of "recipe name=value ...", "ranks=" among these."""
    name, *words = command.split()
    overrides: dict[str, Any] = dict(word.split("=") for word in words)
    for key, value in overrides.items():
        with contextlib.suppress(ValueError, SyntaxError):
            overrides[key] = ast.literal_eval(value)
    return RECIPES[name], overrides


TOLD = """
collapse_72ep_4k ranks=128
  22,610 steps = 72.29 epochs = 92.61 million images
  4,096 = 128 ranks x 32
  momentum, Caffe-style (the velocity contains the learning rate)
  7,800 (init), 11,550 (cyc1), 16,300 (cyc2), 21,050 (cyc3)
collapse_72ep_4k ranks=128 stop_after_steps=20
  92.61 million images; training stops after step 20 optimizer
  every 10 minutes; kept are the newest 5, the best, and the last
  evaluation only of the whole run, after its last step,
imagenette ranks=2 accumulation_steps=4 eval_every=2epochs stop_at=0.9 mixup=0.2
  2 ranks x 8 x 4 micro-batches
  and every 2 epochs; the run stops when top-1 reaches 90 %
  mixup 0.2
imagenette ranks=2 ema_decay=0.99 clip_norm=1.0 first_phase=train initial_weights=w
  gradients clipped to a global norm of 1, moving average (EMA) of the weights with
  start phase train at step 0, weights from w
cifar10_inception_async ranks=10 num_ps=2 max_staleness=8 staleness_rate=inverse
  1,280 = 10 workers x 128
  2 parameter servers, staleness of at most 8, learning rate divided by it
digits ranks=2 checkpoint_every=4epochs
  every 4 epochs (after 90, 180, ..., 269 steps)
"""


@pytest.mark.parametrize(("command", "fragments"), cases(TOLD))
def test_the_whole_run_is_told(command, fragments):
    recipe, overrides = case(command)
    num_ranks = overrides.pop("ranks")
    text = words(recipe, num_ranks, **overrides)
    assert [part for part in fragments if part not in text] == []
    for deviation in recipe.deviations:
        assert " ".join(deviation.split()) in text


def test_rates_are_told_of_the_phase_that_they_are_in_and_again_if_they_come_again():
    def recipe(num_examples: int, *phases: RecipePhase) -> Recipe:
        return dataclasses.replace(
            digits.DIGITS, phases=phases, num_train_examples=num_examples
        )

    rates = Schedule(peak_value=1.0, decay="steps", boundaries=(4, 5))
    first = RecipePhase(epochs=3, schedule=rates, name="first")
    text = told(recipe(1437, first, RecipePhase(epochs=3, name="second")), 1)
    assert row(text, "first")[0].endswith("  1")
    assert row(text, "second")[0].endswith("  1 > 0.1 > 0.01")
    rates = Schedule(peak_value=1.0, init_value=0.5, warmup_length=1, end_value=0.5)
    text = told(recipe(64 * 10_000, RecipePhase(epochs=4, schedule=rates, name="x")), 1)
    assert row(text, "x")[0].endswith("  0.5 > 1 > 0.5")


def test_the_pages_have_each_recipe_and_the_plan_that_is_printed():
    docs = PROGRAM.parents[1] / "docs"
    page = (docs / "recipes.md").read_text()
    sources = (docs / "recipe_sources.md").read_text()
    for name, recipe in RECIPES.items():
        assert f"`{name}`" in page  # In the table of what each is for.
        for accuracy in re.findall(r"\d+\.\d+ %", recipe.published):
            assert accuracy in sources, name
    plan = told(num_ranks=64, global_batch_size=2048)
    table = plan[plan.index("phase  ") :].partition("\n\n")[0]
    assert f"```\n{table}\n```" in page


def test_no_line_is_wider_than_a_terminal():
    texts = [explain.list_recipes(list(RECIPES.values()))]
    for recipe in RECIPES.values():
        texts.append(told(recipe, 1, mixup=0.2, cutmix=0.3, random_augment=4.5))
    for text in texts:
        assert max(map(len, text.splitlines())) <= 80


def test_a_run_that_begins_later_is_told_from_there():
    overrides = {"first_phase": "cyc3", "initial_weights": "other"}
    text = words(**overrides)
    # 22,610 - 16,300 steps of 4096; the phases before are not trained.
    assert "6,310 steps = 20.17 epochs = 25.85 million images" in text
    assert "phase cyc3 at step 16,300, weights from other" in text
    assert "at the ends of phases: 21,050 (cyc3), 22,610 (collapse)" in text
    assert "cyc2" not in text
    # The collapse is the last 1,560 of 6,310 steps: 11.9 of 48 columns.
    assert f"weight decay {'▂' * 37}{'█' * 11} up to 0.0002" in text


def test_the_program_explains_without_tensorflow_to_a_reader_that_is_gone(tmp_path):
    plot = tmp_path / "plan.png"
    code = (
        f"import sys; sys.path[:0] = [{str(PROGRAM.parents[1])!r}]\n"
        "from resnet import resnet_main\n"
        f"assert resnet_main.main(['x', '--explain', '--explain_plot={plot}']) == 0\n"
        "assert 'tensorflow' not in sys.modules"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert plot.exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--recipe=imagenette", "--mixup=0.2", "--num_ranks=64"), "even number"),
        (("--initial_weights=nowhere",), "there is nothing of that name"),
        (("--explain_plot=plan.doc",), "--explain_plot must end in .png, .svg or .pdf"),
    ],
)
def test_what_a_run_would_refuse_is_refused_in_one_sentence(flags, sentence):
    assert_refused(run(resnet_main, "--explain", *flags), sentence)


# The beginning and the end of each change.
CHANGES = """
collapse_72ep_4k examples=9469 global_batch_size=2048
  9,469 training examples ... lengths stay those of the recipe in epochs
  global batch size 2,048 instead of 4,096: the number of steps is ... which is 0.1
tpu_90ep_24k global_batch_size=128 ranks=1
  global batch size 128 ... 0.005208, except for that of step 0, which is 0.025
  the statistics of batch normalization are over 128 ... of 48
lars_42ep_8k global_batch_size=4096
  global batch size ... rates are not scaled, since the source has no rule for that
imagenette ranks=4
collapse_72ep_4k train_steps=2261
  2,261 steps instead of 22,610: each phase ... 0.1 times as long
collapse_72ep_4k train_epochs=1.0
  1 epoch instead of 72.29: each phase and its warmup ... 0.01383 times as long
digits train_epochs=36.0
  36 epochs instead of 12: 3 times as long, ... the warmup keeps its length
tpu_90ep_24k train_steps=9360 warmup_steps=9
  9,360 steps instead of 4,680: ... 2 times as long
  warmup_steps = 9 ... as given
tpu_90ep_24k image_size=128
  image_size = 128 ... as given instead of 224
tpu_90ep_24k weight_decay=1e-4 peak_learning_rate=2.0 seed=3 mixup=0.2
  peak_learning_rate = 2.0 ... as given
  weight_decay = 0.0001 as given ... instead of 5e-05
  mixup = 0.2 as given ... instead of 0.0
tpu_90ep_24k momentum=0.9 image_size=224 mixup=0.0 model=resnet50
lars_40ep_4k ema_decay=0.9 optimizer=momentum model=resnet50
  optimizer = momentum as given instead of lars: ... retune them for this optimizer
  ema_decay = 0.9 as given ... instead of 0.0
tpu_90ep_24k optimizer=lars
  optimizer = lars ... Nesterov and with the learning rate in the velocity)
imagenette peak_learning_rate=0.005
  peak_learning_rate = 0.005 as given: the ... since the rate can't fall in a warmup
imagenette base_learning_rate=0.1
  base_learning_rate = 0.1 ... changes in proportion, to 0.25
cifar10 base_learning_rate=0.2
  base_learning_rate = 0.2 as given: ... the peak learning rate stays
imagenette base_learning_rate=0.001 warmup_steps=0
  base_learning_rate = 0.001 ... not used, since there is no warmup
  warmup_steps = 0 as ... given
"""


@pytest.mark.parametrize(("command", "changes"), cases(CHANGES))
def test_the_differences_from_the_recipe(command, changes):
    recipe, overrides = case(command)
    batch = overrides.get("global_batch_size", recipe.global_batch_size)
    as_the_source = batch // (recipe.rank_batch_size or batch)
    num_ranks = overrides.pop("ranks", as_the_source)
    examples = overrides.pop("examples", 0)
    run = derived(recipe, num_ranks, examples, **overrides)
    told_changes = explain.describe_changes(recipe, overrides, run)
    assert len(told_changes) == len(changes)
    for text, expected in zip(told_changes, changes, strict=True):
        begin, end = expected.split(" ... ")
        assert text.startswith(begin)
        assert text.endswith(end)


def test_of_the_published_runs_there_is_nothing_to_say():
    for recipe in RECIPES.values():
        size = recipe.rank_batch_size or recipe.global_batch_size
        run = derived(recipe, recipe.global_batch_size // size)
        assert explain.describe_changes(recipe, {}, run) == []


@pytest.mark.parametrize(
    ("recipe", "size", "expected"),
    [
        ("imagenette_best", 192, ["evaluated at 192 px, 1.2 times the 160 px"]),
        ("imagenette_best", 160, []),  # As large as in training.
        ("imagenet_18ep", 224, ["evaluated at 224 px, 1.17 times the 192 px"]),
        ("cifar10_94", 32, []),
    ],
)
def test_a_larger_size_in_evaluation_has_a_reason(recipe, size, expected):
    run = dataclasses.replace(derived(RECIPES[recipe], 1).config, image_size=size)
    text = " ".join(explain.describe_run(RECIPES[recipe], {}, Derived(run, 1)).split())
    assert re.findall(r"evaluated at \d+ px, \S+ times the \d+ px", text) == expected
    assert ("arXiv:1906.06423" in text) == bool(expected)


def test_the_momentum_and_decay_of_muon_stand_beside_those_of_other_variables():
    text = told(RECIPES["imagenette_best"], 1)
    lines = text.splitlines()
    (note,) = (line for line in lines if "Muon's momentum, 0.6" in line)
    assert "0.9       0.0005" in lines[lines.index(note) - 3]
    assert text.count("0.6") == 1
    assert "Muon's momentum" not in told(COLLAPSE)


def test_a_recipe_without_a_published_accuracy_says_nothing_of_one():
    for recipe in RECIPES.values():
        lines = row(told(recipe, 1), "published")
        assert lines == [] if not recipe.published else len(lines) == 1
