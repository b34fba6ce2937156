"""The gauge: bits that a change of structure must not change.

python tests/gauge.py --out=/tmp/now.txt
python tests/gauge.py --compare=tests/gauge/avx512_bf16.txt
python tests/gauge.py --only 'train/lars/*' 'text/*' --texts=/tmp/texts

It runs the programs as a user does, and prints a line per case. The cases are in
`gauge/cases.json`; those that make the records and the run "ema" are always run.

- `train/NAME/RANKS`: CRC-32s of a run's checkpoints after steps 1, 2, 5, 10 and 20 ("-"
  where none is due, in a round of local SGD), of all checkpoints, and of the numbers of
  its log that are no times. The CRC-32 of a checkpoint is that of the sorted CRC-32s of
  its tensors, with their types and shapes: their names don't matter. The ranks' own
  tensors, which only the last checkpoint keeps, are included there. A case that ends
  with `/resumed` was stopped after step 10 and started again; that its line is that of
  the whole run is checked, too.
- `convert/NAME`: the SHA-256 of all files of a record set that are not hidden.
- `export/FORMAT`: the CRC-32 of the weights, or of the outputs for a few images.
- `evaluate/NAME`: the loss and the accuracies of each evaluation.
- `text/NAME`: the SHA-256 of what a program prints.

The kernels depend on the instruction set, so there is a file of lines for each, and it
holds for the versions of requirements.txt. All lines are the same in each run of the
gauge. Left out is what isn't: the asynchronous mode, the bytes of exported files, times
and speeds, and in the manifests of record sets the path and the times of their source.

A run on a slow disk or a busy machine skips checkpoints; it is then repeated, and what
it saves the next time fills the gaps.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]
# The flags of all cases, by kind and name.
CASES = json.loads((REPOSITORY / "tests" / "gauge" / "cases.json").read_text())
TRAIN, PLAN, ESTIMATE = "resnet/resnet_main.py", "launch/plan.py", "launch/estimate.py"
STEPS, PRINTED = 20, (1, 2, 5, 10, 20)
ATTEMPTS = 6  # Of a run, until all of its checkpoints are there.
MACHINE = "--num_intra_threads=1 --num_inter_threads=1 --use_tpu=False"
VALUES = "recipe values without a flag"
BOTH, TWO = "on one rank and on two", "on two ranks"
SAVES = f"--checkpoint_every=1steps --keep_checkpoints={STEPS + 1}"


def run_program(program: str, *flags: str, ranks: int = 1) -> str:
    """Runs a program of the repository and returns its standard output.

    Raises:
        RuntimeError: If it fails, with the end of its standard error.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    launcher = ("mpirun", "-np", str(ranks)) if ranks > 1 else ()
    command = [*launcher, sys.executable, str(REPOSITORY / program)]
    command += [flag for part in flags for flag in part.split()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        end = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{program} exits with code {done.returncode}: {end}")
    return done.stdout


@cache
def tensorflow() -> Any:
    """Returns the module, with one thread per op."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def crc_of_json(value: Any) -> str:
    """Returns the CRC-32 of a JSON value."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def crc(arrays: Iterable[Any]) -> str:
    """Returns the CRC-32 of arrays in any order; those of texts are left out."""
    values = [
        array for array in map(np.asarray, arrays) if array.dtype.kind not in "OSU"
    ]
    described = [(f"{v.dtype.name}{v.shape}".encode(), v.tobytes()) for v in values]
    return crc_of_json(sorted(zlib.crc32(head + data) for head, data in described))


def sha256(text: str) -> str:
    """Returns the first half of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_step(folder: Path, is_last: bool) -> str:
    """Returns the CRC-32 of a checkpoint; with the ranks' tensors if it is the last."""
    arrays = []
    for index in folder.glob("*.index"):
        if is_last or not index.name.startswith("rank-"):
            reader = tensorflow().train.load_checkpoint(str(index.with_suffix("")))
            arrays += map(reader.get_tensor, reader.get_variable_to_shape_map())
    return crc(arrays)


def read_log(model_dir: Path) -> str:
    """Returns the CRC-32 of the numbers in metrics.jsonl that are no times."""
    lines = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    # Whether a line of training has the digest of the state depends on its time.
    timed = re.compile("time|second|share|wait|state_digest")
    return crc_of_json(
        [
            {name: value for name, value in line.items() if not timed.search(name)}
            for line in lines
            if line["kind"] != "receipt"  # It has a digest of the times, too.
        ]
    )


class Gauge:
    """The cases, and the folder that they work in."""

    def __init__(self, work: Path, texts: Path | None) -> None:
        """Lists the cases.

        `first` has those that others need, `alone` others of one process, which can run
        side by side, and `together` those of two ranks.
        """
        self.work, self.texts = work, texts
        self.first: dict[str, Callable[[], str]] = {"convert/digits": self.digits}
        self.alone: dict[str, Callable[[], str]] = {"convert/files": self.files}
        self.together: dict[str, Callable[[], str]] = {}
        for ranks, kind in ((1, BOTH), (2, BOTH), (2, TWO)):
            cases = self.alone if ranks == 1 else self.together
            for name, flags in CASES[kind].items():
                for end in ("", "/resumed") if name in CASES["resumed"] else ("",):
                    case = f"train/{name}/{ranks}{end}"
                    cases[case] = partial(self.train, case, name, flags, ranks)
        self.first["train/ema/1"] = self.alone.pop("train/ema/1")
        for name, flags in CASES["exports"].items():
            self.alone[f"export/{name}"] = partial(self.export, name, flags)
        for name, flags in CASES["evaluations"].items():
            self.alone[f"evaluate/{name}/1"] = partial(self.evaluate, name, flags, 1)
        self.together["evaluate/plain/2"] = partial(self.evaluate, "plain", "", 2)
        self._add_text("recipes", TRAIN, "--list_recipes")
        listed = run_program(TRAIN, "--list_recipes").splitlines()[2:]
        # The recipe `own` needs a data set.
        rows = (line.split()[0] for line in listed if line[:4] not in ("    ", "own "))
        for name in rows:
            flags = f"--explain --num_ranks=4 --recipe={name}"
            self._add_text(f"recipe_{name}", TRAIN, flags)
        for name, flags in CASES["explained"].items():
            self._add_text(f"explain_{name}", TRAIN, "--explain", flags)
        for name, flags in CASES["estimates"].items():
            self._add_text(f"estimate_{name}", ESTIMATE, flags)
        jobs, forms = CASES["planned jobs"], ("plan", "script", "json")
        for launcher, job, form in product(CASES["launchers"], jobs, forms):
            flags = f"{jobs[job]} --launcher={launcher} --print={form}"
            self._add_text(f"plan_{launcher}_{job}_{form}", PLAN, flags)

    def _add_text(self, name: str, program: str, *flags: str) -> None:
        self.alone[f"text/{name}"] = partial(self.text, name, program, *flags)

    def text(self, name: str, program: str, *flags: str) -> str:
        """Returns the SHA-256 of what a program prints, and stores that."""
        return self._stored(name, run_program(program, *flags))

    def _stored(self, name: str, text: str) -> str:
        text = text.replace(str(REPOSITORY), "REPOSITORY")
        if self.texts:
            (self.texts / f"{name}.txt").write_text(text)
        return sha256(text)

    def digits(self) -> str:
        """Makes the record set of all runs."""
        run_program("data_prep/digits.py", f"--digits_dir={self.work / 'digits'}")
        return self._convert("digits", "records")

    def files(self) -> str:
        """Converts images of several formats, which are drawn from a seed."""
        random = np.random.default_rng(0)
        kinds = (
            "RGB.jpg",
            "L.jpg",
            "CMYK.jpg",
            "RGB.png",
            "L.png",
            "RGBA.png",
            "P.png",
        )
        for split, label, number in product(("train", "validation"), "abc", range(14)):
            mode, ending = kinds[number % len(kinds)].split(".")
            folder = self.work / "raw" / split / label
            folder.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 256, (30 + number, 50 - number, 3), np.uint8)
            exif = Image.Exif()
            exif[0x112] = number % 8 + 1  # The orientation.
            image = Image.fromarray(pixels).convert(mode)
            image.save(folder / f"{number}.{ending}", exif=exif)
        flags = "--train_shards=3 --apply_exif_orientation --shuffle_seed=1"
        return self._convert("raw", "converted", flags)

    def _convert(self, raw: str, records: str, *flags: str) -> str:
        out = self.work / records
        folders = f"--raw_data_dir={self.work / raw} --local_scratch_dir={out}"
        run_program("data_prep/imagenet_to_tfrecords.py", folders, *flags)
        lines = []
        # Hidden files keep the times of others.
        for path in sorted(path for path in out.rglob("[!.]*") if path.is_file()):
            content = path.read_bytes().replace(bytes(self.work), b"WORK")
            # The digest of the source's files covers their times.
            content = re.sub(rb'"files_sha256": "\w+"', b"", content)
            digest = hashlib.sha256(content).hexdigest()
            lines.append(f"{path.relative_to(out)} {digest}\n")
        return self._stored(f"files_of_{records}", "".join(lines))

    def train(self, case: str, name: str, flags: str, ranks: int) -> str:
        """Trains until every checkpoint was saved once; returns their CRC-32s.

        Raises:
            RuntimeError: If a run fails, or saves other bits than the one before it.
        """
        recipe = self.work / f"{case.replace('/', '_')}.json"
        recipe.write_text(
            json.dumps({**CASES["recipe"], **CASES[VALUES].get(name, {})})
        )
        data = f"--recipe={recipe} --data_dir={self.work / 'records'}"
        length = f"--train_steps={STEPS} --log_step_count_steps=5 --mode=train"
        due, crcs = CASES["saved steps, if not all"].get(name, range(1, STEPS + 1)), {}
        for attempt in range(ATTEMPTS):
            run = self._run(case, attempt)
            command = (TRAIN, flags, data, f"--model_dir={run}", length, SAVES, MACHINE)
            if case.endswith("/resumed"):
                run_program(*command, f"--stop_after_steps={STEPS // 2}", ranks=ranks)
            run_program(*command, ranks=ranks)
            for folder in (run / "checkpoints").glob("step-*"):
                step = int(folder.name.removeprefix("step-"))
                value = read_step(folder, is_last=step == STEPS)
                if crcs.setdefault(step, value) != value:
                    raise RuntimeError(f"two runs differ after step {step}")
            log = read_log(run)
            if case != "train/ema/1":
                shutil.rmtree(run)  # Memory, usually.
            if crcs.keys() >= set(due):
                printed = [crcs[step] if step in due else "-" for step in PRINTED]
                of_all = crc_of_json([crcs[step] for step in due])
                return " ".join((*printed, of_all, log))
        raise RuntimeError(f"only steps {sorted(crcs)} were saved, instead of {due}")

    def _run(self, case: str, attempt: int = 0) -> Path:
        return self.work / "runs" / f"{case.replace('/', '_')}-{attempt}"

    def export(self, name: str, flags: str) -> str:
        """Exports the run with averaged weights; returns the CRC-32 of the export."""
        form = flags.split()[0].removeprefix("--format=")
        out = self.work / f"export_{name}{'' if form == 'savedmodel' else f'.{form}'}"
        model_dir = f"--model_dir={self._run('train/ema/1')}"
        run_program("eval/export.py", f"--out={out}", model_dir, flags)
        return crc(exported(out, form))

    def evaluate(self, name: str, flags: str, ranks: int) -> str:
        """Evaluates the run with the averaged weights; returns the results."""
        out = self.work / f"evaluate_{name}_{ranks}.json"
        folders = f"--data_dir={self.work / 'records'} --json_file={out}"
        folders += f" --model_dir={self._run('train/ema/1')}"
        run_program("eval/resnet_eval.py", folders, MACHINE, flags, ranks=ranks)
        found = re.findall(r'"(loss|top1|top5)": ([^,\s}]+)', out.read_text())
        return " ".join(f"{key}={value}" for key, value in found)


def exported(path: Path, form: str) -> list[Any]:
    """Returns the arrays that an export stands for: its weights, or its outputs."""
    images = np.random.default_rng(0).uniform(0, 255, (5, 32, 32, 3)).astype("float32")
    tf = tensorflow()
    if form == "keras":
        network = tf.keras.models.load_model(path)
        return [*network.get_weights(), *network(images).values()]
    if form == "savedmodel":
        loaded = tf.saved_model.load(str(path))
        return list(loaded.signatures["decoded_images"](images=images).values())
    if form == "safetensors":
        return list(safetensors.numpy.load_file(path).values())
    if form == "onnx":
        return list(map(onnx.numpy_helper.to_array, onnx.load(path).graph.initializer))
    interpreter = tf.lite.Interpreter(str(path), num_threads=1)
    place = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(place, images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place, images)
    interpreter.invoke()
    outputs = interpreter.get_output_details()
    return [interpreter.get_tensor(output["index"]) for output in outputs]


def kind_of_cpu() -> str:
    """Returns the newest instruction set that the kernels distinguish."""
    features = Path("/proc/cpuinfo").read_text().split()
    kinds = {"amx_bf16": "avx512_amx", "avx512_bf16": "avx512_bf16"}
    kinds |= {"avx512f": "avx512", "avx2": "avx2"}
    return next((kind for flag, kind in kinds.items() if flag in features), "other")


def run_cases(gauge: Gauge, patterns: Sequence[str], jobs: int) -> dict[str, str]:
    """Runs the cases whose names match, and prints and returns the values of each."""

    def result(item: tuple[str, Callable[[], str]]) -> tuple[str, str]:
        try:
            values = item[1]()
        except Exception as error:
            values = f"FAILED: {error}".replace("\n", " ")
        print(item[0], values, flush=True)
        return item[0], values

    results: dict[str, str] = {}
    stages = (
        (gauge.first, 1),
        (gauge.alone, jobs),
        (gauge.together, max(jobs // 2, 1)),
    )
    for cases, at_a_time in stages:
        chosen = {
            name: case
            for name, case in cases.items()
            # A resumed run is compared to the whole one.
            if any(fnmatch(n, p) for n in (name, f"{name}/resumed") for p in patterns)
            or cases is gauge.first
        }
        with ThreadPoolExecutor(at_a_time) as pool:
            results.update(pool.map(result, chosen.items()))
    for name, values in results.items():
        if values != results[name.removesuffix("/resumed")]:
            results[name] = f"FAILED: not what the whole run has, but {values}"
    return results


def compare(results: Mapping[str, str], path: Path, is_whole: bool) -> int:
    """Prints the lines that differ from those in a file; returns their number."""
    old = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    names = sorted({*results, *(old if is_whole else ())})
    differing = [name for name in names if results.get(name) != old.get(name)]
    for name in differing:
        print(f"- {name} {old.get(name)}\n+ {name} {results.get(name)}")
    print(f"{len(differing)} of {len(names)} lines differ from {path}")
    return len(differing)


def main() -> int:
    """Runs the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description="Bits that must stay the same.")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--out", type=Path, help="the file to write the lines to")
    parser.add_argument("--compare", type=Path, help="a file of earlier lines")
    parser.add_argument("--texts", type=Path, help="the folder to write texts to")
    parser.add_argument("--work", type=Path, help="an empty folder for the runs")
    flags = parser.parse_args()
    start = time.monotonic()
    tensorflow()  # Before there are threads.
    for folder in filter(None, (flags.texts, flags.work)):
        folder.mkdir(parents=True, exist_ok=True)
    # In memory, if possible: checkpoints are then saved as fast as steps are computed.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        gauge = Gauge((flags.work or Path(folder)).resolve(), flags.texts)
        results = run_cases(gauge, flags.only, flags.jobs)
    if flags.out:
        lines = (f"{name} {values}\n" for name, values in sorted(results.items()))
        flags.out.write_text("".join(lines))
    failed = [name for name, values in results.items() if values.startswith("FAILED")]
    print("".join(f"{name} {results[name]}\n" for name in failed), end="")
    differing = 0
    if flags.compare:
        differing = compare(results, flags.compare, flags.only == ["*"])
    seconds = time.monotonic() - start
    print(f"{kind_of_cpu()}: {len(results)} lines, {seconds:.0f} s", file=sys.stderr)
    return 1 if failed or differing else 0


if __name__ == "__main__":
    sys.exit(main())
