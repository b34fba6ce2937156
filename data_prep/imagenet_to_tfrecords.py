r"""Converts labelled images to TFRecord files for training, or verifies these.

python data_prep/imagenet_to_tfrecords.py --raw_data_dir RAW \
    --local_scratch_dir RECORDS
python data_prep/imagenet_to_tfrecords.py --tfds_name NAME \
    --local_scratch_dir RECORDS
python data_prep/imagenet_to_tfrecords.py --verify --local_scratch_dir RECORDS

RAW contains train/<class>/* and, in validation/, either class folders or images
whose classes are listed in RAW/synset_labels.txt. It can also contain
ImageNet's tar archives as downloaded, or CIFAR-10's binary or Python version.
The program writes RECORDS/train/train-00000-of-01024 and so on, one offsets
file per split and, last, manifest.json. If a conversion was interrupted, rerun
the same command to resume it. --verify reads a finished set and lists corrupt
records.
"""

import os
import pathlib
import signal
import sys

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from data_prep.conversion import convert, output_folder
from data_prep.conversion.plan import Options, Plan, make_plan
from data_prep.conversion.progress import Progress
from data_prep.records import indexing, manifest, schema, verification
from data_prep.sources import raw_data, tfds
from resnet.base import errors

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "raw_data_dir",
    None,
    "Source folder: images in train/ and validation/, or the archives of ImageNet or"
    " CIFAR-10.",
)
flags.DEFINE_string(
    "tfds_name",
    None,
    "Name of a TensorFlow Datasets data set to convert instead of --raw_data_dir.",
)
flags.DEFINE_string(
    "tfds_data_dir",
    None,
    "Data folder of TensorFlow Datasets; if unset, its own default.",
)
flags.DEFINE_string("local_scratch_dir", None, "Output folder for the record files.")
flags.DEFINE_integer(
    "train_shards",
    0,
    "Number of training shards (record files); 0: one per 256 images, at most 1,024.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "validation_shards",
    0,
    "Number of validation shards (record files); 0: one per 256 images, at most 128.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "num_processes",
    0,
    "Number of worker processes; 0: one per available core.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "train_images",
    0,
    "Number of training images to convert, those that come first in the record order;"
    " 0: all.",
    lower_bound=0,
)
flags.DEFINE_integer("shuffle_seed", 0, "Random seed of the record order.")
flags.DEFINE_enum(
    "on_bad_image",
    "fail",
    ["fail", "skip"],
    "Action on an image that can't be decoded: fail stops the conversion, skip omits"
    " the image and lists it in manifest.json. A read error always stops it.",
)
flags.DEFINE_bool(
    "apply_exif_orientation",
    False,
    "Rotate and flip images by their EXIF orientation; the published recipes don't.",
)
flags.DEFINE_bool(
    "verify", False, "Verify the finished record set in --local_scratch_dir."
)

SMALL_SET = 100_000  # Images; the hint for smaller sets names a small-batch recipe.
_DIGITS = tuple("0123456789")
_CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse"),
    *("ship", "truck"),
)
CORRUPT_EXIT_CODE = 1  # Exit code of --verify if it finds corrupt files or records.


def main() -> int:
    """Converts or verifies, as the flags say, and returns the exit code.

    Raises:
        errors.UserError: If a flag, the source or the record set can't be used.
    """
    if FLAGS.verify:
        return _verify()
    _convert()
    return 0


def run() -> None:
    """Runs the program; the entry point of the console script."""
    # SIGTERM, which batch systems send at the time limit, cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    errors.escape_unprintable()
    try:
        errors.parse_flags(sys.argv, __doc__)
        sys.exit(main())
    except errors.UserError as error:
        _log(f"error: {error}")
        sys.exit(errors.EXIT_CODE)
    except KeyboardInterrupt:
        is_reading = FLAGS["verify"].value  # Works also before the flags are parsed.
        remedy = "; the record set is incomplete, rerun the same command to resume"
        _log(f"error: interrupted{'' if is_reading else remedy}")
        sys.exit(128 + signal.SIGINT)


def _convert() -> None:
    _check_source_flags()
    root = _records_folder()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Workers need no thread pool.
    try:
        output_folder.check_not_finished(root)
        if FLAGS.raw_data_dir:
            output_folder.check_apart(root, pathlib.Path(FLAGS.raw_data_dir))
        raw = _open_source()
        for warning in raw.warnings:
            _log(f"warning: {warning}")
        plan = make_plan(root, raw, _options())
        if may_not_fit := output_folder.check_space(plan):
            _log(f"warning: {may_not_fit}")
        with output_folder.locked(root):
            # Again: another process may have finished it before the lock.
            output_folder.check_not_finished(root)
            output_folder.begin(plan)
            try:
                summary = _write(plan)
            finally:
                output_folder.remove_leftovers(plan)
    except OSError as error:
        source = FLAGS.raw_data_dir or FLAGS.tfds_name
        raise errors.UserError(
            f"converting {source} to {root} failed: {error}. Fix this and rerun the"
            " same command to resume."
        ) from error
    except MemoryError as error:
        raise errors.UserError(
            f"the conversion needs more memory than there is with {_num_processes()}"
            " worker processes; rerun the same command with a smaller --num_processes"
        ) from error
    _print(summary)


def _check_source_flags() -> None:
    if bool(FLAGS.raw_data_dir) == bool(FLAGS.tfds_name):
        raise errors.UserError(
            "set exactly one of --raw_data_dir and --tfds_name; got"
            f" raw_data_dir={FLAGS.raw_data_dir}, tfds_name={FLAGS.tfds_name}"
        )
    if FLAGS.tfds_data_dir and not FLAGS.tfds_name:
        raise errors.UserError(
            f"--tfds_data_dir={FLAGS.tfds_data_dir} requires --tfds_name; set both"
        )


def _records_folder() -> pathlib.Path:
    if not FLAGS.local_scratch_dir:
        raise errors.UserError(
            f"--local_scratch_dir is required: {FLAGS['local_scratch_dir'].help}"
        )
    return pathlib.Path(os.path.abspath(FLAGS.local_scratch_dir))


def _num_processes() -> int:
    return FLAGS.num_processes or len(os.sched_getaffinity(0))


def _open_source() -> raw_data.RawData:
    if FLAGS.tfds_name:
        where = FLAGS.tfds_data_dir or "its default folder (change: --tfds_data_dir)"
        _log(f"TensorFlow Datasets prepares {FLAGS.tfds_name} in {where}, if necessary")
        return tfds.prepare(FLAGS.tfds_name, FLAGS.tfds_data_dir)
    return raw_data.open_raw_data(FLAGS.raw_data_dir)


def _options() -> Options:
    return Options(
        num_shards={
            schema.TRAIN: FLAGS.train_shards,
            schema.VALIDATION: FLAGS.validation_shards,
        },
        shuffle_seed=FLAGS.shuffle_seed,
        apply_exif_orientation=FLAGS.apply_exif_orientation,
        skip_bad_images=FLAGS.on_bad_image == "skip",
        num_train_images=FLAGS.train_images,
    )


def _write(plan: Plan) -> str:
    """Writes all unfinished shards and the manifest; returns a summary to print."""
    num_processes = min(_num_processes(), len(plan.paths))
    with Progress(plan.num_images, "images") as progress:
        num_reported = len(convert.reported_shards(plan))
        finished = convert.find_finished(plan, num_processes, progress.add)
        if finished:
            _log(
                f"resuming: {len(finished):,} of {len(plan.paths):,} shards are"
                " already finished"
            )
        if num_changed := num_reported - len(finished):
            _log(
                f"warning: {num_changed:,} shards of the earlier run are written again:"
                " they, or the images in them, have changed since"
            )
        progress.start_rate()
        convert.write_shards(plan, finished, num_processes, progress.add)
        rate = progress.rate()
    written = convert.finish(plan)
    for split_name, class_name in convert.emptied_classes(plan, written):
        _log(
            f"warning: all {split_name} images of class {class_name!r} were skipped, so"
            " the class has no examples there"
        )
    return "\n".join(
        (
            *_describe(written),
            f"{rate:,.0f} images per second, {num_processes} processes",
            f"records: {plan.root}",
            f"next:    python {_next_program(written)} --data_dir={plan.root}"
            " --model_dir=MODEL",
        )
    )


def _describe(written: manifest.Manifest) -> list[str]:
    splits = written.splits.values()
    lines = [
        f"{split.name}: {split.num_examples:,} images, {len(split.shards):,}"
        f" {'shard' if len(split.shards) == 1 else 'shards'}"
        for split in splits
    ]
    num_bytes = sum(shard.num_bytes for split in splits for shard in split.shards)
    lines.append(f"{len(written.class_names):,} classes, {num_bytes:,} bytes")
    converted: dict[str, int] = written.source["converted_images"]
    if converted:
        lines.append(
            f"re-encoded as RGB {written.image_format.upper()}:"
            f" {sum(converted.values()):,}" + _in_parentheses(converted)
        )
    if num_ignored := written.source["num_ignored_files"]:
        lines.append(
            f"ignored files (not images): {num_ignored:,}"
            + _in_parentheses(written.source["ignored_files"])
        )
    if num_skipped := sum(len(split.skipped_images) for split in splits):
        lines.append(
            f"skipped images (can't be decoded): {num_skipped:,}, listed in"
            f" {manifest.FILE_NAME} under skipped_images"
        )
    return lines


def _in_parentheses(counts: dict[str, int]) -> str:
    """Returns the counts by kind, for the end of a line; empty if there are none."""
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return f" ({listed})" if listed else ""


def _recipe(written: manifest.Manifest) -> str | None:
    """Returns the recipe to suggest; None for the default, which is for ImageNet."""
    if written.class_names == _DIGITS:
        return "digits"
    if written.class_names == _CIFAR10:
        return "cifar10"
    num_images = sum(split.num_examples for split in written.splits.values())
    return "imagenette" if num_images < SMALL_SET else None


def _next_program(written: manifest.Manifest) -> str:
    if schema.TRAIN not in written.splits:
        return "eval/resnet_eval.py"
    recipe = _recipe(written)
    return f"resnet/resnet_main.py{f' --recipe={recipe}' if recipe else ''}"


def _verify() -> int:
    """Verifies the finished set, prints what is corrupt, and returns the exit code."""
    if FLAGS.raw_data_dir or FLAGS.tfds_name:
        raise errors.UserError(
            "--verify reads only the record set in --local_scratch_dir; got also the"
            f" source {FLAGS.raw_data_dir or FLAGS.tfds_name!r}. Remove that flag."
        )
    folder = str(_records_folder())
    with errors.naming_failures(f"verifying {folder}"):
        indexing.make_if_missing(folder, _log)
        record_set = manifest.find(folder)
        if record_set is None:
            raise errors.UserError(
                f"--verify requires a finished record set, and {folder} has no"
                f" {manifest.FILE_NAME}. Convert the images, or rerun an interrupted"
                " conversion to finish it."
            )
        return _verify_set(record_set)


def _log(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _print(text: str) -> None:
    """Prints a text in which names of files may have bytes that aren't UTF-8."""
    errors.print_to_pipe(text.encode(errors="backslashreplace").decode())


def _verify_set(record_set: manifest.RecordSet) -> int:
    folder = record_set.records_dir
    splits = record_set.manifest.splits.values()
    num_records = sum(split.num_examples for split in splits)
    num_bytes = sum(shard.num_bytes for split in splits for shard in split.shards)
    with Progress(num_records, "records") as progress:
        problems = verification.verify(record_set, _num_processes(), progress.add)
        rate = progress.rate()
    for problem in problems:
        where = "" if problem.offset is None else f" at byte {problem.offset}"
        _print(f"{problem.path}{where}: {problem.what}")
    if num_problems := sum(problem.count for problem in problems):
        _print(
            f"verification failed: {num_problems:,} corrupt files or records;"
            f" {folder} must hold {num_records:,} good records"
        )
        return CORRUPT_EXIT_CODE
    _print(
        f"verification passed: {num_records:,} records, {num_bytes:,} bytes in"
        f" {folder}, {rate:,.0f} records per second"
    )
    return 0


if __name__ == "__main__":
    run()
