"""Evaluates the checkpoints of a training run on every validation image.

python eval/resnet_eval.py --eval_batch_size 200 --data_dir=RECORDS --model_dir=MODEL
"""

import dataclasses
import datetime
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from absl import flags, logging

from data_prep import atomic_files
from data_prep.errors import UserError, parse_flags
from data_prep.manifest import RecordSet
from resnet import config as configs
from resnet import program, shared_flags
from resnet.config import Config
from resnet.data import record_sets
from resnet.distributed import Communicator
from resnet.placement import Place

if TYPE_CHECKING:
    from resnet.evaluate import Evaluator, Result

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "checkpoints", "latest", "Which: latest, best, all, or steps: 100,200."
)
flags.DEFINE_string("json_file", None, "File that the results are written to as JSON.")

REPORTS = 10  # Lines of progress in one evaluation.


def main(argv: Sequence[str], place: Place, communicator: Communicator) -> None:
    """Evaluates as the flags say."""
    with communicator.together():
        parse_flags(argv)
        shared_flags.check()
        config = configs.load(FLAGS.model_dir) if communicator.rank == 0 else None
        requested = parse_checkpoints(FLAGS.checkpoints)
        check_json_file(FLAGS.json_file)
    communicator.start_guard(place, FLAGS.stall_seconds)
    config = communicator.broadcast(config)
    record_set = record_sets.open_record_set(
        FLAGS.data_dir, "validation", place, communicator
    )
    split = record_set.manifest.splits["validation"]
    with communicator.together():
        check_classes(record_set, config)
    communicator.require_same(
        "validation data and run",
        repr((dataclasses.replace(record_set.manifest, source={}), config)),
    )
    shards = record_sets.check_split(record_set, split, config.shard_by, communicator)
    config = dataclasses.replace(
        config,
        eval_batch_size=FLAGS.eval_batch_size,
        on_bad_record=FLAGS.on_bad_record,
    )
    threads = program.settle_placement(
        place,
        communicator,
        FLAGS.num_intra_threads,
        FLAGS.num_inter_threads,
        FLAGS.kmp_blocktime,
    )

    program.start_tensorflow(communicator)  # Now that its environment is settled.
    from resnet import checkpoint_folders, checkpoints, precision
    from resnet.data import record_files, share
    from resnet.evaluate import Evaluator
    from resnet.train_state import TrainState

    model_dir = pathlib.Path(FLAGS.model_dir)
    with communicator.together():
        steps = []
        if communicator.rank == 0:
            saved = checkpoint_folders.saved_steps(model_dir)
            best = checkpoint_folders.best_step(model_dir)
            steps = choose_steps(requested, saved, best, model_dir)
        records = record_files.open_split(record_set, "validation")
    steps = communicator.broadcast(steps)
    precision.choose(config.precision, communicator)  # Warns where bf16 is slow.
    state = TrainState(config)
    evaluator = Evaluator(
        state.model,
        share.share_of(records, shards, communicator.rank),
        config,
        communicator,
        FLAGS.num_parallel_calls or len(threads.cpus),
    )
    results = []
    for step in steps:
        communicator.doing(f"reading the checkpoint of step {step}", is_timed=False)
        with communicator.together():
            if communicator.rank == 0:
                newest = (
                    checkpoints.load_newest(model_dir)
                    if requested == "latest"
                    else None
                )
                state.assign(newest or checkpoints.load(model_dir, step))
        state.step = communicator.broadcast(state.step)
        communicator.broadcast_variables(list(state.tensors().values()))
        result = evaluate_checkpoint(evaluator, state.decayed_variables, state.step)
        results.append({"global_step": state.step, **result.as_dict()})
    if FLAGS.json_file and communicator.rank == 0:
        contents = {"model_dir": str(model_dir), "results": results, **results[-1]}
        text = json.dumps(contents, indent=2) + "\n"
        atomic_files.atomic_write_bytes(FLAGS.json_file, text.encode())


def check_classes(record_set: RecordSet, config: Config) -> None:
    """Refuses a data set with other classes than the run.

    Raises:
        UserError: If it has.
    """
    contents = record_set.manifest
    if contents.class_names != config.class_names:
        raise UserError(
            f"the run in {FLAGS.model_dir} knows {config.num_classes} classes"
            f" ({config.class_names[0]}, ...), the data in"
            f" {record_set.records_dir} has"
            f" {len(contents.class_names)} ({contents.class_names[0]}, ...): they must"
            " be the same"
        )


def check_json_file(json_file: str | None) -> None:
    """Refuses a file for the results that can't be made.

    Raises:
        UserError: If its folder is none.
    """
    if json_file and not pathlib.Path(json_file).resolve().parent.is_dir():
        raise UserError(f"--json_file must lie in a folder; {json_file} doesn't.")


def parse_checkpoints(value: str) -> str | list[int]:
    """Returns "latest", "best", "all" or the steps that --checkpoints names.

    Raises:
        UserError: If it is none of these.
    """
    if value in ("latest", "best", "all"):
        return value
    try:
        return sorted({int(step) for step in value.split(",")})
    except ValueError as error:
        raise UserError(
            "--checkpoints must be latest, best, all, or steps such as 100,200; got"
            f" {value!r}."
        ) from error


def choose_steps(
    requested: str | list[int],
    saved: list[int],
    best: int | None,
    model_dir: pathlib.Path,
) -> list[int]:
    """Returns the steps to evaluate.

    Args:
        requested: What `parse_checkpoints` returns.
        saved: The steps that have a checkpoint.
        best: The one of them that training found best, if it evaluated any.
        model_dir: For the sentence of an error.

    Raises:
        UserError: If there is no checkpoint, or not one that was asked for.
    """
    if not saved:
        raise UserError(f"expected a checkpoint in {model_dir}; there is none yet")
    if requested == "latest":
        return saved[-1:]
    if requested == "all":
        return saved
    if requested == "best":
        if best is None:
            raise UserError(
                f"expected a checkpoint in {model_dir} that training evaluated; none"
                " of them was. Name a step."
            )
        return [best]
    if missing := sorted(set(map(int, requested)) - set(saved)):
        raise UserError(
            f"expected a checkpoint of step {missing[0]} in {model_dir}; there are"
            f" those of {', '.join(map(str, saved))}"
        )
    return [int(step) for step in requested]


def evaluate_checkpoint(
    evaluator: "Evaluator", decayed_variables: list, step: int
) -> "Result":
    """Returns the result of one checkpoint, and logs it as the published runs do."""
    num_batches = evaluator.num_batches
    every = max(1, num_batches // REPORTS)

    def report(done: int) -> None:
        if done % every == 0 or done == num_batches:
            logging.info("Evaluation [%d/%d]", done, num_batches)

    result = evaluator.evaluate(decayed_variables, report)
    logging.info(
        "Finished evaluation at %s",
        datetime.datetime.now().strftime("%Y-%m-%d-%H:%M:%S"),
    )
    logging.info(
        "Saving dict for global step %d: Top-1 accuracy = %.7g, Top-5 accuracy = %.7g,"
        " global_step = %d, loss = %.8g",
        step,
        result.top1,
        result.top5,
        step,
        result.loss,
    )
    logging.info(
        "Eval results: %s",
        {
            "Top-1 accuracy": result.top1,
            "loss": result.loss,
            "Top-5 accuracy": result.top5,
            "global_step": step,
        },
    )
    print(f"step {step}: {result}", flush=True)
    return result


def run() -> None:
    """Runs the program and exits."""
    program.run(main)


if __name__ == "__main__":
    run()
