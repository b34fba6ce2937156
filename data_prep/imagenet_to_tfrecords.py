r"""Converts labelled images to TFRecord files for training, or verifies these.

python data_prep/imagenet_to_tfrecords.py --raw_data_dir RAW \
    --local_scratch_dir RECORDS
python data_prep/imagenet_to_tfrecords.py --tfds_name NAME \
    --local_scratch_dir RECORDS
python data_prep/imagenet_to_tfrecords.py --verify --local_scratch_dir RECORDS

RAW contains train/<class>/* and validation/<class>/*, or only <class>/*, of
which --validation_fraction=0.1 holds out a tenth. --labels=FILE names the
classes in a table instead. RAW can also contain ImageNet's validation images
without folders, its tar archives as downloaded, CIFAR-10's binary or Python
version, WebDataset's tar archives, or Parquet files.
The program writes RECORDS/train/train-00000-of-01024 and so on, one index
file per split and, last, manifest.json. --in_place writes only the last two, by
which training reads the images where they are. If a conversion was interrupted,
rerun the same command to resume it. --verify reads a finished set and lists
corrupt records.
"""

import os
import pathlib
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before the imports that may fail.

# isort: split

from data_prep.conversion import convert, holdout, in_place, output_folder
from data_prep.conversion.plan import Options, Plan, make_plan
from data_prep.images import other_formats
from data_prep.records import indexing, manifest, verification
from data_prep.sources import raw_data, tfds
from data_prep.sources.image_list import Source
from data_prep.worker_processes import Progress
from resnet.base import cli, commands, limits
from resnet.base.errors import UserError, naming_failures
from resnet.base.settings import COUNT_OR_ZERO, setting
from resnet.base.text import counted, first_of


@dataclass(frozen=True)
class Settings(cli.OutputSettings):
    """The flags that say what to do, apart from the options of a conversion."""

    raw_data_dir: str | None = setting(
        None,
        "Source folder: images in train/ and validation/ or in folders of classes, or"
        " archives of ImageNet, CIFAR-10 or WebDataset, or Parquet files.",
        unset="none",
        elsewhere="data_dir input_dir src",
    )
    labels: str | None = setting(
        None,
        "CSV, TSV or JSON lines file with the columns path, label and, if known, split,"
        " instead of class folders. Paths are relative to --raw_data_dir, by default"
        " its folder.",
        unset="none",
        elsewhere="csv labels_file",
    )
    group_column: str | None = setting(
        None,
        "Column of --labels, such as patient or part, by which images are held out:"
        " never a part of the images with the same value.",
        unset="none",
    )
    multi_label: bool = setting(
        False,
        "Images have any number of labels, instead of one class: in --labels divided by"
        " | or ;, or a list in JSON lines. An empty cell or list is no label.",
        elsewhere="multilabel",
    )
    tfds_name: str | None = setting(
        None,
        "Name of a TensorFlow Datasets data set to convert instead of --raw_data_dir.",
        unset="none",
    )
    tfds_data_dir: str | None = setting(
        None,
        "Data folder of TensorFlow Datasets; if unset, its own default.",
        unset="TFDS's own",
    )
    tfds_label: str | None = setting(
        None,
        "Feature with the class, for a TensorFlow Datasets data set with several.",
        unset="the only one",
    )
    validation_split: str | None = setting(
        None,
        "Folder in --raw_data_dir with the validation images, such as test, or their"
        " split in --labels.",
        unset="the only one",
    )
    local_scratch_dir: str | None = setting(
        None,
        "Output folder for the record files.",
        unset="required",
        elsewhere="out output out_dir output_dir records dst",
    )
    num_processes: int = setting(
        0,
        "Number of worker processes; 0: one per available core.",
        bounds=COUNT_OR_ZERO,
    )
    verify: bool = setting(
        False, "Verify the finished record set in --local_scratch_dir."
    )

    @property
    def records_dir(self) -> pathlib.Path:
        """Absolute path of the folder of the record set."""
        if not self.local_scratch_dir:
            raise UserError(
                "--local_scratch_dir is required: the folder of the record files"
            )
        return pathlib.Path(os.path.abspath(self.local_scratch_dir))

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return self.num_processes or limits.usable_cpus()


FLAGS: cli.Groups = (Settings, Options, cli.Flags(cli.OutputSettings, common=False))

CORRUPT_EXIT_CODE = 1  # Exit code of --verify if it finds corrupt files or records.


def main(argv: Sequence[str]) -> int:
    """Converts or verifies, as the flags say, and returns the exit code."""
    # SIGTERM, which batch systems send at the time limit, cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = Settings()
    try:
        line = cli.parse(argv, __doc__, FLAGS)
        settings = line.of(Settings)
        if settings.verify:
            return _verify(settings)
        _convert(settings, line.of(Options))
        return 0
    except KeyboardInterrupt:
        remedy = "; the record set is incomplete, rerun the same command to resume"
        new_line = "\n" if sys.stderr.isatty() else ""  # Behind a terminal's ^C.
        _log(f"{new_line}error: interrupted{'' if settings.verify else remedy}")
        return 128 + signal.SIGINT


def _convert(settings: Settings, options: Options) -> None:
    origin = settings.raw_data_dir or settings.labels
    if not origin and not settings.tfds_name:
        raise UserError(
            "--raw_data_dir is required: the folder of the images; or --labels, or"
            " --tfds_name. --help lists the flags."
        )
    if origin and settings.tfds_name:
        raise UserError(
            "set exactly one of --raw_data_dir and --tfds_name, or --labels; got"
            f" raw_data_dir={settings.raw_data_dir}, tfds_name={settings.tfds_name},"
            f" labels={settings.labels}"
        )
    for name, needed, is_given in (
        ("tfds_data_dir", "tfds_name", settings.tfds_name),
        ("tfds_label", "tfds_name", settings.tfds_name),
        ("validation_split", "raw_data_dir", origin),
        ("group_column", "labels", settings.labels),
        ("multi_label", "labels", settings.labels),
    ):
        if (value := getattr(settings, name)) and not is_given:
            raise UserError(f"--{name}={value} requires --{needed}; set both")
    holdout.check(options, settings.group_column)
    root, num_workers = settings.records_dir, settings.num_workers
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Workers need no thread pool.
    rate = "already converted, nothing was written"
    try:
        plan = make_plan(root, _open_source(settings, options), options, num_workers)
        if manifest.VALIDATION not in plan.source.splits:
            _log(f"warning: the source has {manifest.NO_VALIDATION}")
        written = output_folder.finished_set(plan)
        if written is None:
            output_folder.check_space(plan)
            with output_folder.locked(root):
                # Again: another process may have finished it before the lock.
                written = output_folder.finished_set(plan)
                if written is None:
                    output_folder.begin(plan)
                    try:
                        written, rate = _write(plan, num_workers, settings.quiet)
                    finally:
                        output_folder.remove_leftovers(plan)
    except OSError as error:
        raise UserError(
            f"converting {origin or settings.tfds_name} to {root} failed: {error}. Fix"
            " this and rerun the same command to resume."
        ) from error
    except MemoryError as error:
        raise UserError(
            f"the conversion needs more memory than there is with {num_workers} worker"
            " processes; rerun the same command with a smaller --num_processes"
        ) from error
    if repeated := written.source.get(convert.REPEATED):
        _log(
            f"warning: {repeated}: equal images in training make the accuracy too high."
            " Remove them from one of the splits and convert again."
        )
    last_lines = rate, f"records: {root}", f"next:    {_next_command(written, root)}"
    print("\n".join((*_describe(written), *last_lines)))


def _open_source(settings: Settings, options: Options) -> Source:
    """Returns the images to convert, in the splits in which they are converted."""
    raw, choice = settings.raw_data_dir, settings.validation_split
    if settings.tfds_name:
        where = settings.tfds_data_dir or "its default folder (--tfds_data_dir)"
        if not settings.quiet:
            _log(
                f"TensorFlow Datasets prepares {settings.tfds_name}, if needed, in"
                f" {where}"
            )
        source = tfds.prepare(
            settings.tfds_name, settings.tfds_data_dir, settings.tfds_label
        )
    else:
        if raw and not settings.labels:
            root = settings.records_dir
            output_folder.check_apart(root, pathlib.Path(raw), choice)
        source = raw_data.open_raw_data(
            raw, choice, settings.labels, settings.group_column, settings.multi_label
        )
    if options.validation_fraction or options.fold:
        source = holdout.hold_out(source, options, settings.num_workers)
    for warning in source.warnings:
        _log(f"warning: {warning}")
    counts = source.ignored_kinds.items()
    if unread := {kind: n for kind, n in counts if kind in other_formats.EXTENSIONS}:
        _log(
            f"warning: images left out, in formats that aren't read:"
            f" {_listed(unread)}. {other_formats.ADVICE}"
        )
    return source


def _write(
    plan: Plan, num_workers: int, is_quiet: bool
) -> tuple[manifest.Manifest, str]:
    """Writes all unfinished shards and the manifest; returns it and the speed."""
    processes = counted(num_workers, "process")
    if plan.options.in_place:
        with Progress(plan.num_images, "images", is_quiet) as progress:
            written = in_place.write(plan, num_workers, progress.add)
            return written, f"{progress.rate():,.0f} images per second, {processes}"
    num_processes = min(num_workers, len(plan.paths))
    with Progress(plan.num_images, "images", is_quiet) as progress:
        num_reported = len(convert.reported_shards(plan))
        finished = convert.find_finished(plan, num_processes, progress.add)
        if finished and not is_quiet:
            _log(
                f"resuming: {len(finished):,} of {len(plan.paths):,} shards are"
                " already finished"
            )
        if num_changed := num_reported - len(finished):
            _log(
                f"warning: {counted(num_changed, 'shard')} of the earlier run to write"
                " again: they, or the images in them, have changed since"
            )
        progress.start_rate()
        convert.write_shards(plan, finished, num_processes, progress.add)
        rate = progress.rate()
    written = convert.finish(plan, num_processes)
    for split_name, class_name in convert.emptied_classes(plan, written):
        _log(
            f"warning: all {split_name} images of class {class_name!r} were skipped, so"
            " the class has no examples there"
        )
    processes = counted(num_processes, "process")
    return written, f"{rate:,.0f} images per second, {processes}"


def _describe(written: manifest.Manifest) -> Iterator[str]:
    splits = written.splits.values()
    for split in splits:
        images = counted(split.num_examples, "image")
        noun = "shard"
        if written.images_dir:
            is_folder = os.path.isdir(
                os.path.join(written.images_dir, split.shards[0].path)
            )
            noun = "folder" if is_folder else "archive"
        parts = counted(len(split.shards), noun)
        yield f"{split.name}: {images}, {parts}"
    num_bytes = sum(shard.num_bytes for split in splits for shard in split.shards)
    names = first_of(written.class_names)
    classes = counted(len(written.class_names), "class")
    if written.multi_label:
        classes = f"several labels an image: {len(written.class_names):,}"
    yield f"{classes} ({names}), {num_bytes:,} bytes"
    converted: dict[str, int] = written.source["converted_images"]
    if num_converted := sum(converted.values()):
        kinds = _in_parentheses(converted)
        format_name = written.image_format.upper()
        yield f"re-encoded as RGB {format_name}: {num_converted:,}{kinds}"
    if written.depth_window:
        low, high = written.depth_window
        yield f"16-bit samples from {low:,} to {high:,} became 0 to 255 (depth_window)"
    if num_turned := written.source["ignored_exif_orientations"]:
        yield (
            "not rotated or flipped as their EXIF data tells:"
            f" {num_turned:,} (--apply_exif_orientation does)"
        )
    if num_ignored := written.source["num_ignored_files"]:
        kinds = _in_parentheses(written.source["ignored_files"])
        yield f"ignored files: {num_ignored:,}{kinds}"
    if skipped := [image.name for split in splits for image in split.skipped_images]:
        yield (
            f"skipped images (can't be decoded): {len(skipped):,}, listed in"
            f" {manifest.FILE_NAME} under skipped_images: {first_of(skipped)}"
        )


def _in_parentheses(counts: dict[str, int]) -> str:
    """Returns the counts by kind, for the end of a line; empty if there are none."""
    return f" ({_listed(counts)})" if counts else ""


def _listed(counts: dict[str, int]) -> str:
    """Returns counts of extensions, formats, or of nouns and what follows them."""
    nouns = {kind: kind.partition(" ") for kind in counts}
    return ", ".join(
        f"{counted(count, nouns[kind][0])} {nouns[kind][2]}"
        if kind[:1].islower()
        else f"{count:,} {kind}"
        for kind, count in counts.items()
    )


def _next_command(written: manifest.Manifest, root: pathlib.Path) -> str:
    """Returns the training with the recipe that fits, or the evaluation of a run."""
    data_dir = f"--data_dir={root}"
    if manifest.TRAIN not in written.splits:
        return commands.command("resnet-eval", data_dir, "--model_dir=MODEL")
    words = [data_dir, f"--model_dir={root if root.name else root.resolve()}-model"]
    if recipe := manifest.fitting_recipe(written):
        is_own = recipe == "own" and manifest.VALIDATION in written.splits
        evaluations = ["--eval_every=5epochs"] * is_own
        words = [f"--recipe={recipe}", "--precision=auto", *evaluations, *words]
    return commands.command("resnet-train", *words)


def _verify(settings: Settings) -> int:
    """Verifies the finished set, prints what is corrupt, and returns the exit code."""
    if source := settings.raw_data_dir or settings.tfds_name:
        raise UserError(
            "--verify reads only the record set in --local_scratch_dir; got also the"
            f" source {source!r}. Remove that flag."
        )
    folder = str(settings.records_dir)
    with naming_failures(f"verifying {folder}"):
        indexing.make_if_missing(folder, _log)
        record_set = manifest.find(folder)
        if record_set is None:
            raise UserError(
                f"--verify requires a finished record set, and {folder} has no"
                f" {manifest.FILE_NAME}. Convert the images, or rerun an interrupted"
                " conversion to finish it."
            )
        splits = record_set.manifest.splits.values()
        num_records = sum(split.num_examples for split in splits)
        num_bytes = sum(shard.num_bytes for split in splits for shard in split.shards)
        with Progress(num_records, "records", settings.quiet) as progress:
            num_workers = settings.num_workers
            problems = verification.verify(record_set, num_workers, progress.add)
            rate = progress.rate()
    for problem in problems:
        print(str(problem))
    if num_problems := sum(problem.count for problem in problems):
        print(
            f"verification failed: {num_problems:,} corrupt files or records;"
            f" {record_set.records_dir} must hold {num_records:,} good records"
        )
        return CORRUPT_EXIT_CODE
    print(
        f"verification passed: {num_records:,} records, {num_bytes:,} bytes in"
        f" {record_set.records_dir}, {rate:,.0f} records per second"
    )
    return 0


def _log(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(program.run(main))
