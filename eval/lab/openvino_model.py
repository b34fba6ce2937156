"""Measures how many images per second OpenVINO classifies with an exported network.

python eval/lab/openvino_model.py EXPORT --precision=bf16 --batch_size=16

It needs the package openvino, as a user of the export does. Several requests run at the
same time, each on a stream with cores of its own (the hint for throughput), on random
images. The last line is a JSON object, which --vs of eval/benchmark.py reads.
"""

import argparse
import json
import pathlib
import statistics
import time

import numpy as np
import openvino

_PRECISIONS = {"float32": "f32", "bf16": "bf16"}  # OpenVINO's names.


def rates(args: argparse.Namespace) -> list[float]:
    """Returns the images per second of each third of the timed batches."""
    path, streams = pathlib.Path(args.export), args.streams
    core = openvino.Core()
    model = core.read_model(path / "model.xml" if path.is_dir() else path)
    contents = json.loads(model.get_rt_info("resnet_cpu").astype(str))
    side = contents["image_size"]
    shape = [args.batch_size, side, side, 3]
    model.reshape(shape)  # A fixed shape, which it plans its memory for.
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "PERFORMANCE_HINT": "THROUGHPUT",
            "NUM_STREAMS": streams,
            "INFERENCE_PRECISION_HINT": _PRECISIONS[args.precision],
        },
    )
    queue = openvino.AsyncInferQueue(compiled, streams)
    images = np.random.default_rng(0).uniform(0, 255, shape).astype(np.float32)

    def run(num_batches: int) -> float:
        start = time.perf_counter()
        for _ in range(num_batches):
            queue.start_async({0: images})
        queue.wait_all()
        return time.perf_counter() - start

    run(2 * streams)
    num_batches = streams * args.steps // 3
    return [num_batches * args.batch_size / run(num_batches) for _ in range(3)]


def main() -> None:
    """Parses the arguments, measures, and prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", help="The folder of the export, or its model.xml.")
    parser.add_argument("--precision", choices=tuple(_PRECISIONS), default="float32")
    parser.add_argument("--batch_size", type=int, default=16, help="Of a request.")
    parser.add_argument("--streams", type=int, default=2, help="Concurrent requests.")
    parser.add_argument("--steps", type=int, default=24, help="Batches of a stream.")
    args = parser.parse_args()
    if args.steps < 1 or args.steps % 3:
        parser.error(f"--steps must be a multiple of 3, above 0; got {args.steps}")
    measured = rates(args)
    median = statistics.median(measured)
    figures = {"median": median, "min": min(measured), "max": max(measured)}
    print(json.dumps({"images_per_second": figures}))


if __name__ == "__main__":
    main()
