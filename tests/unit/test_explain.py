import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from resnet import resnet_main
from resnet.config import changes as recipe_changes
from resnet.config.config import Config
from resnet.config.explain import description, figure
from resnet.config.recipe import RecipePhase
from resnet.config.recipes import RECIPES, digits, imagenet, imagenette, inception
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule
from resnet.metrics import figure_file
from tests.in_process import assert_refused, run

PROGRAM = Path(resnet_main.__file__)
COLLAPSE = imagenet.COLLAPSE_72EP_4K


def resolved(recipe=COLLAPSE, **given) -> Config:
    return resolve(recipe, given, recipe.num_train_examples, ("a", "b"))


def told(recipe=COLLAPSE, num_ranks=128, **given) -> str:
    config = resolved(recipe, **given)
    changes = recipe_changes.describe_changes(recipe, given, config, num_ranks)
    return description.describe_run(recipe, config, num_ranks, changes)


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


def test_each_phase_is_told_with_its_steps_epochs_images_and_rates():
    text = told()
    when, what = row(text, "cyc2")
    # 11,550 steps before; 4096 / 1,281,167 of an epoch each; 4750 x 4096 images.
    assert "  11,550 to 16,299  " in when
    assert "36.93 to 52.11" in when
    assert "  19.46 million  " in when
    assert when.endswith("0.255 > 0.7635 > 0.5738 > 0.1028")
    assert "0.9, reset" in what
    assert what.endswith("224 px, random_resized_crop of 10 to 100 %")
    collapse = row(text, "collapse")[1]
    assert "0.0002" in collapse
    assert collapse.endswith("224 px, random_crop")


def test_the_whole_run_is_told():
    text = " ".join(told().split())
    assert "22,610 steps = 72.29 epochs = 92.61 million images" in text
    assert "global batch 4,096 = 128 rank(s) x 32" in text
    assert "top-1 76.278 %" in text
    assert "momentum, Caffe-style (the velocity contains the learning rate)" in text
    # An epoch is 312.8 steps.
    assert "every epoch (after 313, 626, ..., 22,610 steps)" in text
    assert "7,800 (init), 11,550 (cyc1), 16,300 (cyc2), 21,050 (cyc3)" in text
    assert "Changed from the recipe" not in text
    for deviation in COLLAPSE.deviations:
        assert " ".join(deviation.split()) in text


def test_the_crops_of_the_published_run_are_told_and_how_to_have_the_others():
    recipe = imagenet.TPU_90EP_24K
    text = " ".join(told(recipe, 512).split())
    assert "224 px, random_resized_crop_2018_02 of 10 to 100 %" in text
    assert "evaluation after the last step, resize_then_crop" in text
    assert "February 2018, so images are cropped as there" in text
    april = {"augmentation": "random_resized_crop", "eval_crop": "crop_then_resize"}
    text = " ".join(told(recipe, 512, **april).split())
    assert "224 px, random_resized_crop of 10 to 100 %" in text
    assert (
        "augmentation = random_resized_crop as given instead of"
        " random_resized_crop_2018_02"
    ) in text
    assert "eval_crop = crop_then_resize as given instead of resize_then_crop" in text


def test_a_trial_is_told_with_the_plan_of_the_whole_run():
    text = " ".join(told(stop_after_steps=20).split())
    assert (
        "22,610 steps = 72.29 epochs = 92.61 million images; training stops after step"
        " 20 optimizer"
    ) in text
    assert "Changed from the recipe" not in text
    assert "checkpoints every epoch (after 20 steps)" in text
    assert "and those at the ends of phases" not in text
    assert "evaluation only of the whole run, after its last step, " in text


def test_what_is_changed_is_told():
    text = " ".join(told(num_ranks=2, global_batch_size=2048, momentum=0.8).split())
    assert "Changed from the recipe:" in text
    assert "global batch size 2,048 instead of 4,096" in text
    assert "the learning rates are multiplied by 0.5" in text
    assert "momentum = 0.8 as given instead of 0.9" in text


def test_steps_that_drop_are_told_one_by_one():
    (when, _) = row(told(imagenet.GOYAL_90EP_8K, 256), "train")
    assert when.endswith("0.1 > 3.196 > 3.2 > 0.32 > 0.032 > 0.0032")


def test_a_drop_is_told_of_the_phase_that_it_is_in():
    rates = Schedule(peak_value=1.0, decay="steps", boundaries=(4, 5))
    first = RecipePhase(epochs=3, schedule=rates, name="first")
    recipe = dataclasses.replace(
        digits.DIGITS, phases=(first, RecipePhase(epochs=3, name="second"))
    )
    text = told(recipe, 1)
    assert row(text, "first")[0].endswith("  1")
    assert row(text, "second")[0].endswith("  1 > 0.1 > 0.01")


def test_a_rate_that_comes_again_is_told_again():
    rates = Schedule(peak_value=1.0, init_value=0.5, warmup_length=1, end_value=0.5)
    recipe = dataclasses.replace(
        digits.DIGITS,
        phases=(RecipePhase(epochs=4, schedule=rates, name="there_and_back"),),
        num_train_examples=64 * 10_000,
    )
    (when, _) = row(told(recipe, 1), "there_and_back")
    assert when.endswith("  0.5 > 1 > 0.5")


def test_parts_evaluations_and_averages_are_told():
    text = told(
        imagenette.IMAGENETTE,
        2,
        accumulation_steps=4,
        eval_every="2 epochs",
        stop_at_top1=0.9,
        ema_decay=0.99,
        clip_norm=1.0,
        mixup=0.2,
        first_phase="train",
        initial_weights="other",
    )
    text = " ".join(text.split())
    assert "global batch 64 = 2 rank(s) x 8 x 4 micro-batches" in text
    assert "and every 2 epochs; the run stops when top-1 reaches 90 %" in text
    assert "moving average (EMA) of the weights with decay 0.99" in text
    assert "gradients clipped to a global norm of 1" in text
    assert "mixup 0.2" in text
    assert "start phase train at step 0, weights from other" in text


def test_bars_follow_the_curve():
    (bars,) = [line for line in told().splitlines() if line.startswith("weight decay")]
    # 5e-5 is a quarter of 2e-4: two of eight; the collapse is the last 6.9 %.
    assert bars == f"weight decay   {'▂' * 45}{'█' * 3}  up to 0.0002"


def test_bars_tell_the_highest_rate_and_show_the_lowest():
    lines = told(imagenet.GOYAL_90EP_8K, 256).splitlines()
    (bars,) = [line for line in lines if line.startswith("learning rate")]
    assert bars.endswith("▁▁▁▁▁▁▁  up to 3.2")


def test_all_recipes_are_listed_with_what_is_published():
    text = description.list_recipes(list(RECIPES.values()))
    for name, recipe in RECIPES.items():
        (line,) = row(text, name)
        assert f"{recipe.global_batch_size:,}" in line
        assert line.endswith(recipe.published or "  -")


def test_the_list_of_recipes_fits_a_terminal_and_is_whole():
    recipes = list(RECIPES.values())
    lines = description.list_recipes(recipes).splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    for recipe in recipes:
        assert set(recipe.published.split()) <= set(words)


def test_the_pages_have_the_list_and_the_plan_that_are_printed():
    docs = PROGRAM.parents[1] / "docs"
    page = (docs / "recipes.md").read_text()
    for name in RECIPES:
        assert f"`{name}`" in page  # In the table of what each is for.
    listed = description.list_recipes(list(RECIPES.values()))
    assert f"```\n{listed}\n```" in (docs / "recipe_sources.md").read_text()
    plan = told(num_ranks=64, global_batch_size=2048)
    table = plan[plan.index("phase  ") :].partition("\n\n")[0]
    assert f"```\n{table}\n```" in page


def test_no_line_is_wider_than_a_terminal():
    texts = [description.list_recipes(list(RECIPES.values()))]
    for name, recipe in RECIPES.items():
        texts.append(told(recipe, 1, mixup=0.2, cutmix=0.3, random_augment=4.5))
        (first, *_) = recipe.phases
        assert first.name in texts[-1], name
    for text in texts:
        assert max(map(len, text.splitlines())) <= 80


def test_the_rates_are_drawn(tmp_path):
    picture = tmp_path / "plan.png"
    figure_file.write(figure.draw(resolved()), picture, "--explain_plot")
    with Image.open(picture) as image:
        assert image.size == (990, 660)


def test_a_run_that_begins_later_is_told_and_drawn_from_there():
    given = {"first_phase": "cyc3", "initial_weights": "other"}
    text = told(**given)
    # 22,610 - 16,300 steps of 4096; the phases before are not trained.
    assert "6,310 steps = 20.17 epochs = 25.85 million images" in text
    assert "phase cyc3 at step 16,300, weights from other" in text
    assert not row(text, "cyc2")
    assert "at the ends of phases: 21,050 (cyc3), 22,610 (collapse)" in (
        " ".join(text.split())
    )
    (bars,) = [line for line in text.splitlines() if line.startswith("weight decay")]
    # The collapse is the last 1,560 of 6,310 steps: 11.9 of 48 columns.
    assert bars == f"weight decay   {'▂' * 37}{'█' * 11}  up to 0.0002"
    config = resolved(**given)
    rate = figure.draw(config).axes[0]
    begins = [line.get_xdata()[0] for line in rate.lines]
    assert begins == [config.epoch(16_300), config.epoch(21_050)]
    assert [text.get_text() for text in rate.texts] == ["cyc3", "collapse"]


def test_small_numbers_of_images_are_told_as_they_are():
    (when, _) = row(told(digits.DIGITS, 2), "train")
    # 12 epochs of 1,437 are 269 steps and 28 images, which are left out.
    assert "  17,216  " in when


def test_the_program_explains_without_data(tmp_path):
    plot = tmp_path / "plan.png"
    flags = ("--recipe=lars_40ep_4k", "--num_ranks=64", f"--explain_plot={plot}")
    done = run(resnet_main, "--explain", *flags)
    assert done.returncode == 0, done.stderr
    assert "13,137 steps = 42.00 epochs" in done.stdout
    assert plot.exists()
    assert done.stderr == ""


def test_the_settings_of_compression_have_short_flags():
    values = {"-c": "entiremodel", "-K": "0.03", "-V": "0.25", "-Q": "9"}
    given = [word for pair in values.items() for word in pair]
    done = run(resnet_main, "--explain", *given)
    assert done.returncode == 0, done.stderr
    for change in (
        "compress = entiremodel",
        "ratio = 0.03",
        "threshold = 0.25",
        "qstates = 9",
    ):
        assert change in done.stdout


def test_the_program_explains_without_tensorflow():
    code = (
        f"import sys; sys.path[:0] = [{str(PROGRAM.parents[1])!r}]\n"
        "sys.argv = ['x', '--explain']\n"
        "from resnet import resnet_main\n"
        "try: resnet_main.run()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("what", ["--list_recipes", "--explain"])
def test_a_reader_that_is_gone_is_no_error(what):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        done = subprocess.run(
            [sys.executable, PROGRAM, what],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        # 1,437 examples of which a step has 64; 12 epochs are 269 steps.
        ("100", "every 100 steps (after 100, 200, ..., 269 steps)"),
        ("4 epochs", "every 4 epochs (after 90, 180, ..., 269 steps)"),
        ("7 epochs", "every 7 epochs (after 158, 269 steps)"),
        ("12 epochs", "every 12 epochs (after 269 steps)"),
        ("0.01 epochs", "every 0.01 epochs (after 1, 2, ..., 269 steps)"),
        ("5 minutes", "every 5 minutes; kept"),
    ],
)
def test_the_first_checkpoints_and_the_last_are_told(every, steps):
    assert steps in " ".join(told(digits.DIGITS, 1, checkpoint_every=every).split())


def test_the_program_lists_the_recipes():
    done = run(resnet_main, "--list_recipes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("recipe ")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--recipe=nothing",), "expected a recipe among"),
        (("--recipe=nothing.json",), "nothing.json must hold a recipe"),
        (("--num_ranks=7",), "must be a multiple of the number of ranks"),
        (("--ema_decay=1",), "--ema_decay must be in [0, 1); got 1.0"),
        (("--accumulation_steps=7",), "times --accumulation_steps=7"),
        (("--recipe=imagenette", "--mixup=0.2", "--num_ranks=64"), "even number"),
        (("--recipe=digits", "--weight_decay=-1"), "--weight_decay must be at least 0"),
        (("--initial_weights=nowhere",), "nowhere must contain a checkpoint"),
        (("--explain_plot=plan.doc",), "--explain_plot must end in .png, .svg or .pdf"),
        (("--eval_every=10 minutes",), "--eval_every must be a number of steps or"),
        (("--eval_every=5", "--mode=train"), "need --mode=train_and_eval; got --mode="),
        (("--stop_at_top1=1", "--mode=train"), "need --mode=train_and_eval; got"),
        (("--stop_at_top1=0.7",), "--stop_at_top1=0.7 needs --eval_every, such as"),
        (("--use_tpu",), "--use_tpu must be False"),
        (("--stall_seconds=0",), "--stall_seconds must be at least 1; got 0"),
    ],
)
def test_what_a_run_would_refuse_is_refused_in_one_sentence(flags, sentence):
    assert_refused(run(resnet_main, "--explain", *flags), sentence)


def test_an_asynchronous_run_has_workers_and_servers():
    text = told(
        inception.CIFAR10_ASYNC,
        num_ranks=10,  # The workers.
        num_ps=2,
        max_staleness=8,
        staleness_rate="inverse",
    )
    assert "1,280 = 10 worker(s) x 128" in text
    asynchrony = row(text, "asynchronous")[-1]  # The source's line has the word, too.
    assert asynchrony.endswith(
        "2 parameter server(s), staleness of at most 8, learning rate divided by it"
    )
    assert "asynchronous" not in [line.split(" ")[0] for line in told().splitlines()]
