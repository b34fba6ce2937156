"""Converts labelled images into record files for training.

python data_prep/imagenet_to_tfrecords.py --raw_data_dir RAW --local_scratch_dir RECORDS
python data_prep/imagenet_to_tfrecords.py --tfds_name NAME --local_scratch_dir RECORDS
python data_prep/imagenet_to_tfrecords.py --verify --local_scratch_dir RECORDS

RAW holds train/<class>/* and, in validation/, either class folders or images whose
classes are in RAW/synset_labels.txt; or ImageNet's archives as they are downloaded.
RECORDS gets train/train-00000-of-01024 and so on, offsets files and, last,
manifest.json. The same command again goes on with a conversion that was interrupted.
--verify reads a finished set again and names each damaged record.
"""

import os
import pathlib
import signal
import sys
import time

from absl import flags

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from data_prep import errors
from data_prep.conversion import convert, output_folder
from data_prep.conversion.plan import Options, Plan, make_plan
from data_prep.conversion.progress import Progress
from data_prep.records import indexing, manifest, tfrecord_format, verification
from data_prep.sources import raw_data, tfds

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "raw_data_dir",
    None,
    "Folder with the images, in train/ and validation/, or with ImageNet's archives.",
)
flags.DEFINE_string(
    "tfds_name",
    None,
    "Instead of --raw_data_dir: name of a data set of TensorFlow Datasets.",
)
flags.DEFINE_string(
    "tfds_data_dir",
    None,
    "Where TensorFlow Datasets keeps its files; its own default if not given.",
)
flags.DEFINE_string("local_scratch_dir", None, "Folder for the records.")
flags.DEFINE_integer(
    "train_shards", 0, "Number of train record files; 0 = by size.", lower_bound=0
)
flags.DEFINE_integer(
    "validation_shards",
    0,
    "Number of validation record files; 0 = by size.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "num_processes", 0, "Worker processes; 0 = one a usable core.", lower_bound=0
)
flags.DEFINE_integer("shuffle_seed", 0, "Seed of the order of the records.")
flags.DEFINE_enum(
    "on_bad_image",
    "fail",
    ["fail", "skip"],
    "What an image that can't be decoded does: end the conversion, or be left out"
    " (the manifest names it). One that can't be read always ends it.",
)
flags.DEFINE_bool(
    "apply_exif_orientation",
    False,
    "Turn images as their EXIF data says; the published recipes don't.",
)
flags.DEFINE_bool(
    "verify", False, "Read the finished set in --local_scratch_dir and check it."
)

SMALL_SET = 100_000  # Images; below, the hint names a recipe with a small batch.
DAMAGED_EXIT_CODE = 1  # Of --verify.


def main() -> int:
    """Does what the flags say and returns the exit code.

    Raises:
        errors.UserError: If that can't be done.
    """
    if FLAGS.verify:
        return _verify()
    _convert()
    return 0


def run() -> None:
    """Runs the program, as its console script does."""
    # A batch system's end of time cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        errors.parse_flags(sys.argv)
        sys.exit(main())
    except errors.UserError as error:
        _say(f"error: {error}")
        sys.exit(errors.EXIT_CODE)
    except KeyboardInterrupt:
        is_reading = FLAGS["verify"].value  # Also where the flags aren't parsed yet.
        rest = ", the set is not complete; the same command goes on with it"
        _say(f"error: interrupted{'' if is_reading else rest}")
        sys.exit(128 + signal.SIGINT)


def _convert() -> None:
    _check_source_flags()
    root = _records_folder()
    output_folder.check_not_finished(root)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # A worker needs no pool of it.
    try:
        if FLAGS.raw_data_dir:
            output_folder.check_apart(root, pathlib.Path(FLAGS.raw_data_dir))
        raw = _open_source()
        for warning in raw.warnings:
            _say(f"warning: {warning}")
        plan = make_plan(root, raw, _options())
        output_folder.check_space(plan)
        with output_folder.locked(root):
            output_folder.check_not_finished(root)  # By another one meanwhile.
            output_folder.begin(plan)
            try:
                summary = _write(plan)
            finally:
                output_folder.remove_leftovers(plan)
    except OSError as error:
        given = FLAGS.raw_data_dir or FLAGS.tfds_name
        raise errors.UserError(
            f"converting {given} to {root} failed: {error}. When that is mended, the"
            " same command goes on."
        ) from error
    print(summary)


def _check_source_flags() -> None:
    if bool(FLAGS.raw_data_dir) == bool(FLAGS.tfds_name):
        raise errors.UserError(
            "either --raw_data_dir or --tfds_name is needed, and not both;"
            f" got raw_data_dir={FLAGS.raw_data_dir}, tfds_name={FLAGS.tfds_name}"
        )
    if FLAGS.tfds_data_dir and not FLAGS.tfds_name:
        raise errors.UserError(
            f"--tfds_data_dir={FLAGS.tfds_data_dir} needs --tfds_name; give both"
        )


def _records_folder() -> pathlib.Path:
    if not FLAGS.local_scratch_dir:
        raise errors.UserError(
            f"--local_scratch_dir is needed: {FLAGS['local_scratch_dir'].help}"
        )
    return pathlib.Path(os.path.abspath(FLAGS.local_scratch_dir))


def _num_processes() -> int:
    return FLAGS.num_processes or len(os.sched_getaffinity(0))


def _open_source() -> raw_data.RawData:
    if FLAGS.tfds_name:
        where = FLAGS.tfds_data_dir or "its own folder (--tfds_data_dir names another)"
        _say(f"TensorFlow Datasets prepares {FLAGS.tfds_name}, if need be, in {where}")
        return tfds.prepare(FLAGS.tfds_name, FLAGS.tfds_data_dir)
    return raw_data.open_raw_data(FLAGS.raw_data_dir)


def _options() -> Options:
    return Options(
        num_shards={
            tfrecord_format.TRAIN: FLAGS.train_shards,
            tfrecord_format.VALIDATION: FLAGS.validation_shards,
        },
        shuffle_seed=FLAGS.shuffle_seed,
        apply_exif_orientation=FLAGS.apply_exif_orientation,
        skip_bad_images=FLAGS.on_bad_image == "skip",
    )


def _write(plan: Plan) -> str:
    """Writes the set, or what is missing of it, and returns a summary for the user."""
    num_processes = min(_num_processes(), len(plan.paths))
    with Progress(plan.num_images, "images") as progress:
        finished = convert.find_finished(plan, num_processes, progress.add)
        if finished:
            _say(
                f"going on: {len(finished):,} of {len(plan.paths):,} shards are"
                " finished and kept"
            )
        num_kept = progress.num_done
        start_time = time.perf_counter()
        convert.write_shards(plan, finished, num_processes, progress.add)
    seconds = time.perf_counter() - start_time
    made = convert.finish(plan)
    rate = (plan.num_images - num_kept) / seconds
    return "\n".join(
        (
            *_describe(made),
            f"{rate:,.0f} images/s, processes: {num_processes}",
            f"records: {plan.root}",
            f"next:    python {_next_program(made)} --data_dir={plan.root}"
            " --model_dir=MODEL",
        )
    )


def _describe(made: manifest.Manifest) -> list[str]:
    lines = [
        f"{split.name}: {split.num_examples:,} images, record files:"
        f" {len(split.shards):,}"
        for split in made.splits.values()
    ]
    num_bytes = sum(s.num_bytes for split in made.splits.values() for s in split.shards)
    kinds: dict[str, int] = made.source["converted_images"]
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    lines.append(
        f"{len(made.class_names):,} classes, {num_bytes:,} bytes;"
        f" {sum(kinds.values()):,} images turned into RGB JPEG"
        f"{f' ({listed})' if listed else ''},"
        f" {made.source['num_ignored_files']:,} files ignored"
    )
    num_skipped = sum(len(split.skipped_images) for split in made.splits.values())
    if num_skipped:
        lines.append(
            f"left out since they can't be decoded: {num_skipped:,}, see skipped_images"
            f" in {manifest.FILE_NAME}"
        )
    return lines


def _next_program(made: manifest.Manifest) -> str:
    if tfrecord_format.TRAIN not in made.splits:
        return "eval/resnet_eval.py"
    num_images = sum(split.num_examples for split in made.splits.values())
    recipe = " --recipe=imagenette" if num_images < SMALL_SET else ""
    return f"resnet/resnet_main.py{recipe}"


def _verify() -> int:
    """Checks the finished set, prints what is damaged, and returns the exit code."""
    if FLAGS.raw_data_dir or FLAGS.tfds_name:
        raise errors.UserError(
            "--verify looks at the set in --local_scratch_dir only; got also"
            f" {FLAGS.raw_data_dir or FLAGS.tfds_name!r}. Leave that out."
        )
    folder = str(_records_folder())
    try:
        indexing.make_if_missing(folder, _say)
        record_set = manifest.find(folder)
        if record_set is None:
            raise errors.UserError(
                f"--verify needs a finished set in {folder}; there is no"
                f" {manifest.FILE_NAME}. Convert the images, or start the conversion"
                " again to finish it"
            )
        return _verify_set(record_set)
    except OSError as error:
        raise errors.UserError(f"verifying {folder} failed: {error}") from error


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _verify_set(record_set: manifest.RecordSet) -> int:
    folder = record_set.records_dir
    splits = record_set.manifest.splits.values()
    num_records = sum(split.num_examples for split in splits)
    num_bytes = sum(shard.num_bytes for split in splits for shard in split.shards)
    start_time = time.perf_counter()
    with Progress(num_records, "records") as progress:
        damages = verification.verify(record_set, _num_processes(), progress.add)
    rate = num_records / (time.perf_counter() - start_time)
    for damage in damages:
        where = "" if damage.offset is None else f" at byte {damage.offset}"
        print(f"{damage.path}{where}: {damage.what}")
    if damages:
        print(f"damages: {len(damages):,}, in {num_records:,} records of {folder}")
        return DAMAGED_EXIT_CODE
    print(
        f"all is well in {folder}: {num_records:,} records, {num_bytes:,} bytes,"
        f" {rate:,.0f} records/s"
    )
    return 0


if __name__ == "__main__":
    run()
