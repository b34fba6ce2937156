"""Verifies a finished run: what it logged, saved, read and computed.

python eval/verify.py --data_dir=RECORDS --model_dir=MODEL
mpirun -np 2 python eval/verify.py --replay --data_dir=RECORDS --model_dir=MODEL

With each checkpoint, a run logs digests (lines of kind "receipt" in
metrics.jsonl). One process computes again, rank by rank, the gradients that
follow a checkpoint. With --replay, as many ranks as the run had train again
from each checkpoint to the next.
"""

import dataclasses
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program as base_program  # Before imports that may fail.

# isort: split

import numpy as np
from absl import logging

from data_prep.records import verified
from data_prep.records.manifest import TRAIN, RecordSet
from resnet.base import cli, commands, json_file
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.base.settings import setting
from resnet.base.text import counted, first_of
from resnet.checkpoint import integrity, step_dirs
from resnet.config import command_line, phases
from resnet.config.command_line import JobSettings
from resnet.config.config import Config, differences, load_config
from resnet.data import record_sets
from resnet.distributed import digests
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.metrics import jsonl
from resnet.runtime import program, startup
from resnet.runtime.job import Job, Run
from resnet.watchdog import history

if TYPE_CHECKING:  # They import TensorFlow.
    from resnet.checkpoint.tensors import Checkpoint
    from resnet.data.record_files import ExampleShard


@dataclass(frozen=True)
class VerifySettings:
    """How much is computed again."""

    share: float = setting(
        1.0,
        "The share of the ranks, at least one, whose gradients after each checkpoint"
        " are computed again; 0 for none.",
        bounds=(0, 1),
    )
    replay: bool = setting(
        False,
        "Train again from each checkpoint to the next, on as many ranks as the run"
        " had.",
    )


FLAGS: cli.Groups = (
    command_line.FOLDERS,
    cli.Flags(VerifySettings, common=True),
    cli.Flags(JobSettings, names=("stall_seconds",)),
    cli.OutputSettings,
)


class Findings:
    """What was confirmed, what contradicts, and what can't be decided here."""

    def __init__(self, communicator: Communicator) -> None:
        self._is_writer = communicator.rank == 0
        self.num_confirmed = 0
        self.contradictions: list[str] = []
        self.undecided: list[str] = []

    def add(self, what: str, contradiction: str = "", undecided: str = "") -> None:
        """Prints a finding; without one of the others, it is confirmed."""
        if contradiction:
            self.contradictions.append(f"{what}: {contradiction}")
        elif undecided:
            self.undecided.append(f"{what}: {undecided}")
        else:
            self.num_confirmed += 1
        if self._is_writer:
            print_result(f"{what:<28} {contradiction or undecided or 'confirmed'}")

    def __str__(self) -> str:
        text = f"confirmed: {self.num_confirmed}; wrong: {len(self.contradictions)}"
        text += f"; not decided: {len(self.undecided)}"
        if self.contradictions:
            text += f" ({first_of(self.contradictions)})"
        return text


def main(argv: Sequence[str]) -> int:
    """Verifies as the flags say, as one of the ranks of a job."""
    return program.run(verify, argv)


def verify(
    argv: Sequence[str], process: ProcessInfo, communicator: Communicator
) -> None:
    """Verifies a run, and reports all that was found.

    Raises:
        AgreedFailure: On all ranks, if anything is not what the run logged.
    """
    with communicator.collective_errors():
        line = cli.parse(argv, __doc__, FLAGS)
        settings, job_settings = line.of(VerifySettings), line.of(JobSettings)
        data_dir, model_dir = line.values["data_dir"], line.values["model_dir"]
        command_line.check_folders(data_dir, model_dir)
        config = load_config(model_dir)
        lines = read_lines(pathlib.Path(model_dir))
        receipts = [line for line in lines if line["kind"] == jsonl.RECEIPT]
        check_job(config, settings, receipts, communicator.num_ranks)
    startup.join_job(process, communicator, job_settings.stall_seconds)
    record_set = record_sets.open_record_set(data_dir, TRAIN, process, communicator)
    findings = Findings(communicator)
    check_log(lines, findings)
    has_records = check_records(record_set, config, findings)
    check_settings(config, pathlib.Path(model_dir), findings)
    num_threads = max(line.get("num_intra_threads", 0) for line in receipts)
    shards = startup.check_shards(record_set, [TRAIN], config.shard_by, communicator)
    threads = startup.start_on_own_cores(
        process, communicator, JobSettings(num_intra_threads=num_threads)
    )
    from resnet.runtime import precision

    train = startup.open_shards(record_set, shards, communicator)[TRAIN]
    precision.choose(config.precision, communicator)
    job = Job(communicator, threads)
    config = dataclasses.replace(config, model_dir=model_dir, data_dir=data_dir)
    states = dict(check_states(config, receipts, findings))
    what = "replay" if settings.replay else "gradients" if settings.share else ""
    if what and not has_records:  # All would differ, for that reason.
        findings.add(what, undecided="only the records of the run can tell")
    elif settings.replay:
        replay(config, states, train, job, findings)
    elif settings.share:
        check_gradients(config, states, settings.share, train, threads, findings)
    if communicator.rank == 0:
        print_result(str(findings))
        step = max(states, default=0)
        history.append(
            pathlib.Path(model_dir), "verification", step=step, reason=str(findings)
        )
    if findings.contradictions:
        raise AgreedFailure(
            f"{model_dir} is not what the run logged: {findings.contradictions[0]}"
        )


def read_lines(model_dir: pathlib.Path) -> list[jsonl.Line]:
    """Returns the lines of a run's log; UserError without one that can be verified."""
    path = model_dir / jsonl.FILE
    lines, num_unreadable = jsonl.read_and_count(path) if path.exists() else ([], 0)
    if num_unreadable:
        raise UserError(
            f"{path} must be the log of a run; {counted(num_unreadable, 'line')} can't"
            " be read, so the run can't be verified."
        )
    if not any(line["kind"] == jsonl.RECEIPT for line in lines):
        raise UserError(
            f"{path} must have lines of kind {jsonl.RECEIPT!r}, which a training logs"
            " after each checkpoint; it has none. Train on, or name another folder."
        )
    return lines


def check_job(
    config: Config, settings: VerifySettings, receipts: list[jsonl.Line], num_ranks: int
) -> None:
    """Refuses a number of ranks that doesn't fit what is asked for."""
    of_run = {len(line["gradient_digests"]) for line in receipts[:-1]} or {1}
    if settings.replay and of_run != {num_ranks}:
        wanted = " and ".join(map(str, sorted(of_run)))
        raise UserError(
            f"--replay needs as many ranks as the run had, {wanted}; got {num_ranks}."
            " Start it with mpirun -np, or leave it out."
        )
    if not settings.replay and num_ranks > 1:
        raise UserError(
            "without --replay, one process computes the gradients of all ranks; got"
            f" {num_ranks} ranks. Start it without mpirun, or add --replay."
        )
    if not settings.replay and config.shard_by == "file":
        raise UserError(
            "with --shard_by=file, no process sees the records of all ranks. Verify"
            " the run with --replay on the hosts that it had."
        )


def check_log(lines: list[jsonl.Line], findings: Findings) -> None:
    """Compares the digest in each receipt with the lines before it."""
    begin = 0
    for index, line in enumerate(lines):
        if line["kind"] == jsonl.RECEIPT and index > begin:
            what = f"log, lines {begin + 1} to {index}"
            is_same = jsonl.digest(lines[:index]) == line["log_digest"]
            wrong = "a line was changed, added or removed"
            findings.add(what, "" if is_same else wrong)
            begin = index
            if not is_same:  # All later digests depend on these lines.
                return


def check_records(record_set: RecordSet, config: Config, findings: Findings) -> bool:
    """Compares the training records with those of the run, byte by byte.

    Returns whether they are the same, as far as that is known.
    """
    split, wrong, undecided = record_set.manifest.splits[TRAIN], "", ""
    if record_set.manifest.images_dir:
        converter = commands.command("imagenet-to-tfrecords", "--verify")
        undecided = f"the same index; {converter} reads the images"
    if split.records_sha256 != config.train_records_sha256:
        wrong = "the run was trained on other records"
    try:
        verified.verify(record_set, split.shards, accepts_corrupt=False)
    except UserError as error:
        wrong = str(error)
    findings.add("training records", wrong, undecided)
    return not wrong


def check_settings(config: Config, model_dir: pathlib.Path, findings: Findings) -> None:
    """Compares config.json with the settings in each checkpoint."""
    for step in step_dirs.saved_steps(model_dir):
        what = f"settings, step {step:,}"
        try:
            saved = integrity.read_metadata(step_dirs.of_step(model_dir, step))
            of_step = json_file.instance(Config, saved["config"], "the settings")
            findings.add(what, "; ".join(differences(of_step, config)))
        except UserError as error:
            findings.add(what, str(error))


def check_states(
    config: Config, receipts: list[jsonl.Line], findings: Findings
) -> Iterator[tuple[int, tuple["Checkpoint", jsonl.Line]]]:
    """Yields the checkpoints that are intact, by their steps, with their receipts."""
    from resnet.checkpoint import tensors

    folder = pathlib.Path(config.model_dir)
    by_step = {line["step"]: line for line in receipts}
    for step in step_dirs.saved_steps(folder):
        what = f"state, step {step:,}"
        if step not in by_step:
            findings.add(what, undecided="the log has no receipt of it")
            continue
        try:
            saved = tensors.load(folder, step)
        except UserError as error:
            findings.add(what, str(error))
            continue
        common = dict(saved.tensors)
        common.pop(tensors.RANK_BATCH_NORM, None)
        is_same = digests.digest_of_state(common) == by_step[step][jsonl.STATE_DIGEST]
        findings.add(what, "" if is_same else "it has other values than were logged")
        if is_same:
            yield step, (saved, by_step[step])


def check_gradients(
    config: Config,
    states: dict[int, tuple["Checkpoint", jsonl.Line]],
    share: float,
    train: "ExampleShard",
    threads: Threads,
    findings: Findings,
) -> None:
    """Computes the gradients of some ranks after each checkpoint again."""
    from resnet.checkpoint import restore
    from resnet.data import batches
    from resnet.data.input_pipeline import Reading
    from resnet.distributed.collectives import Collectives
    from resnet.exchange.gradients import LocalExchange
    from resnet.optim.train_state import TrainState
    from resnet.training.train_step import TrainStep

    state = TrainState(config)
    exchange, step_of_phase = LocalExchange(Collectives(), []), {}
    for step, (saved, receipt) in states.items():
        logged = receipt.get("gradient_digests", [])
        if not logged:
            continue
        restore.restore(state, saved)
        phase = phases.at(config.phases, step)
        if phase.name not in step_of_phase:
            step_of_phase[phase.name] = TrainStep(state, phase, exchange)
        shard = dataclasses.replace(train, num_ranks=len(logged))
        reading = Reading.of_run(config, shard, len(logged), len(threads.cpus))
        last = np.array([(step + 1) * config.accumulation_steps - 1])
        wrong = []
        ranks = chosen_ranks(len(logged), share, config.seed + step)
        for rank in ranks:
            batch = next(batches.chosen_batches(reading, rank, last))
            gradients = step_of_phase[phase.name].gradients(batch, step)
            if digests.digest(gradients) != logged[rank]:
                wrong.append(f"rank {rank}")
        what = f"gradients, step {step + 1:,}"
        if not wrong:
            findings.add(f"{what}, {counted(len(ranks), 'rank')}")
        elif len(wrong) == len(ranks):
            findings.add(
                what, undecided="all differ, as with another instruction set or version"
            )
        else:
            findings.add(what, f"{first_of(wrong)} of {len(ranks)} computed others")


def chosen_ranks(num_ranks: int, share: float, seed: int) -> list[int]:
    """Returns the ranks to verify after a checkpoint: a share of all, by the seed."""
    count = max(1, round(share * num_ranks))
    chosen = np.random.default_rng(seed).choice(num_ranks, count, replace=False)
    return sorted(chosen.tolist())


def replay(
    config: Config,
    states: dict[int, tuple["Checkpoint", jsonl.Line]],
    train: "ExampleShard",
    job: Job,
    findings: Findings,
) -> None:
    """Trains from each checkpoint to the next, and compares the states."""
    from resnet.checkpoint import tensors
    from resnet.training import loop

    logging.set_verbosity(logging.WARNING)
    communicator, source = job.communicator, pathlib.Path(config.model_dir)
    first = phases.first_step(config.phases, config.first_phase)
    begin = first
    for step, (_, receipt) in states.items():
        folder = communicator.broadcast(
            tempfile.mkdtemp(prefix="replay-") if communicator.rank == 0 else None
        )
        with communicator.collective_errors():
            if communicator.rank == 0 and begin > first:
                place = step_dirs.of_step(pathlib.Path(folder), begin)
                shutil.copytree(step_dirs.of_step(source, begin), place)
                shutil.copy(source / jsonl.FILE, folder)
        changed: dict[str, Any] = {
            "model_dir": folder,
            "mode": "train",
            "stop_after_steps": step - first,
            **dict.fromkeys(
                ("eval_every", "record_log", "report_every", "export_dir"), ""
            ),
            "stop_at": 0.0,
        }
        loop.train_and_evaluate(Run(dataclasses.replace(config, **changed), train), job)
        wrong = ""
        if communicator.rank == 0:
            again = dict(tensors.load(pathlib.Path(folder), step).tensors)
            again.pop(tensors.RANK_BATCH_NORM, None)
            if digests.digest_of_state(again) != receipt[jsonl.STATE_DIGEST]:
                other = first_difference(source, pathlib.Path(folder), begin, step)
                wrong = f"it leads to another state after step {other:,}, or this is"
                wrong += " another instruction set"
            shutil.rmtree(folder)
        wrong = communicator.broadcast(wrong)
        findings.add(f"replay, steps {begin + 1:,} to {step:,}", wrong)
        begin = step


def first_difference(
    source: pathlib.Path, folder: pathlib.Path, begin: int, end: int
) -> int:
    """Returns the first step from `begin` to `end` whose states differ in two logs.

    It is `end` if no line between has a digest in both.
    """
    of_logs = [
        {
            line["step"]: line[jsonl.STATE_DIGEST]
            for line in jsonl.read(path / jsonl.FILE)
            if line["kind"] == "train" and jsonl.STATE_DIGEST in line
        }
        for path in (source, folder)
    ]
    run, again = of_logs
    differing = (
        step
        for step in sorted(run.keys() & again.keys())
        if begin < step < end and run[step] != again[step]
    )
    return next(differing, end)


if __name__ == "__main__":
    sys.exit(base_program.run(main))
