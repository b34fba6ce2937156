"""What a core is asked to compute: all compiled ops, on many shapes, in both formats.

The results are the same bits on every machine with the same instruction set:

- inputs come from integer arithmetic (`numbers`), and only compiled ops compute with
  them; the one stock op decodes a JPEG, in integers;
- an op uses one thread, so that the order of its sums depends on shapes alone: block
  sizes are constants, and nothing depends on the sizes of caches;
- the kernels call no mathematical functions of a library and no approximate
  instructions: only sums, products, quotients, roots and FMA, which IEEE 754 defines;
- of AVX512_BF16 and AMX, whose products' rounding is their own, sums are of whole
  numbers below 2^24, which are exact in any order; so are those of resizing.

A result may differ between compilers, which choose where a product and a sum become an
FMA.
"""

import base64
import itertools
import pathlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf

from data_prep.records import tf_example, tfrecord
from resnet import native
from resnet.config.compression import HEADER_BYTES
from resnet.exchange.codecs import messages
from resnet.selftest.numbers import Numbers

Results = Iterator[Any]  # Tensors and variables, in any structure.
_FORMATS = (tf.float32, tf.bfloat16)
# Shapes that are drawn for each format; most are small, since edges have most code.
_CONVOLUTIONS, _WINOGRAD, _MAPS = 1_000, 160, 320
_UPDATES = 20
_TILES = tuple(itertools.product(range(1, 14), (9, 16, 25, 32, 41, 64)))
_CODED = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    9,
    11,
    15,
    31,
    61,
    240,
    513,
    2_048,
    5_000,
    9_999,
    70_001,
)  # Values each.

# An image of 24x20 pixels with subsampled colors.
JPEG = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV01yid4h#wq4h;?x5fBp?C>j_R78o%jB^@X_Gd(;xGdMRuNL)@pL{"
    "~*OI8bd-S6^ahXlFi6ad~iLcwA*?WB=O#Lje&I5*QU2FB%#zV?sDWV`F1uV`F1uV`F1uV`F1uV`F1uV`F1"
    "uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`Klo01*fP6aW|l0U`hb5di}c0sq7R7ytnQ0RaI300000000000"
    "00061O)>B!~h`>009I70s;d700000000000RRI85dsngArnDDaiRaj02cuP0RaI30000000000000051_A"
    "{C!~h-<00II60s{a500000000000RjL61Q8M;6H#IR+5ij#0RRFK0}%i}0F`CEmiA%o>3D+H)Tm&?+PYMk"
    "mvEU^;W_N_n|x7sUy~jNL9ZEk`n@qU2if$BeeSi6)O9=Sd)aoQsW-*q4Jt<+$|n}<?ND<N03=;m0{;L}61"
    "n}jA7P9)U<cTkxV9TL(jp-;N%9!8lez!d"
)


def record() -> bytes:
    """Returns the file that the ops read: a record with the JPEG."""
    example: dict[str, bytes | int] = {tf_example.ENCODED: JPEG, tf_example.LABEL: 7}
    return tfrecord.frame_record(tf_example.encode_example(example))


def digests(seed: int, path: pathlib.Path) -> dict[str, int]:
    """Returns the CRC-32C of what each group of ops computes; `path` has `record`."""
    numbers = Numbers(seed)
    results: dict[str, int] = {}
    for group, (name, compute) in enumerate(_OF_FORMAT.items()):
        for dtype in _FORMATS:
            if name in _ON_ANY_CPU or native.fast_ops(dtype):
                own = numbers.from_group(group)
                results[f"{name} in {dtype.name}"] = _digest(compute(own, dtype))
    for group, (name, compute_from) in enumerate(_WITHOUT_FORMAT.items()):
        results[name] = _digest(compute_from(numbers.from_group(group), path))
    if native.instruction_set() == "AVX512_CORE_BF16":  # It has two products.
        native.widen_bf16(True)
        own, name = numbers.from_group(0), "convolutions in bfloat16 as float32"
        results[name] = _digest(_convolutions(own, tf.bfloat16))
        native.widen_bf16(False)
    return results


def _digest(results: Results) -> int:
    crc = 0
    for result in results:
        for tensor in tf.nest.flatten(result):
            value = tensor.numpy()
            data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
            crc = google_crc32c.extend(crc, data)
    return crc


def _convolutions(numbers: Numbers, dtype: tf.DType) -> Results:
    """As matrix products: of each kernel size and stride, with all kinds of edges."""
    for number in range(_CONVOLUTIONS):
        side, num_in, num_out = (12, 72, 140) if number % 7 == 0 else (4, 40, 70)
        size, stride = numbers.choice((1, 1, 2, 3, 5, 7)), numbers.choice((1, 1, 2, 3))
        sides = 1 + numbers.below(side), 1 + numbers.below(side)
        images = (1 + numbers.below(3), *sides)
        channels = 1 + numbers.below(num_in), 1 + numbers.below(num_out)
        yield from _convolution(numbers, dtype, images, size, stride, channels)
    # Few products, and sums in several blocks, for each number of rows and vectors of a
    # tile; all that can follow the products as well.
    for rows, num_out in _TILES:
        wide, deep = (1, 1, rows), (1, 30, 55)
        for num_in in (1, 2, 7):
            channels = num_in, num_out
            yield from _convolution(numbers, dtype, wide, 1, 1, channels, "full")
            yield from _convolution(numbers, dtype, wide, 1, 1, channels, "none")
        yield from _convolution(numbers, dtype, wide, 1, 1, (1_650, num_out))
        yield from _convolution(numbers, dtype, deep, 1, 1, (rows, num_out))
    for images, size, channels in (
        ((2, 9, 9), 3, (200, 31)),
        ((1, 64, 64), 1, (20, 100)),  # Rows in several blocks.
        ((1, 80, 104), 1, (8, 128)),  # An output that is written around the caches.
    ):
        yield from _convolution(numbers, dtype, images, size, 1, channels)


def _winograd(numbers: Numbers, dtype: tf.DType) -> Results:
    """The others: 3x3 with stride 1 and many channels."""
    for _ in range(_WINOGRAD):
        images = (1 + numbers.below(3), 1 + numbers.below(20), 1 + numbers.below(20))
        channels = 32 + numbers.below(48), 32 + numbers.below(80)
        yield from _convolution(numbers, dtype, images, 3, 1, channels)


def _convolution(
    numbers: Numbers,
    dtype: tf.DType,
    images_shape: tuple[int, int, int],
    size: int,
    stride: int,
    channels: tuple[int, int],
    epilogue: str = "",
) -> Results:
    """An `epilogue` that is not "full" or "none" is drawn."""
    ops: Any = native.ops()
    (batch, height, width), (num_in, num_out) = images_shape, channels
    outputs_shape = (batch, -(-height // stride), -(-width // stride), num_out)
    is_winograd = size == 3 and stride == 1 and min(channels) >= 32
    # Exact sums of products; Winograd's algorithm computes in float32.
    has_amx = native.instruction_set() == "AVX512_CORE_AMX"
    is_whole = dtype == tf.bfloat16 and (has_amx or not is_winograd)
    draw = numbers.whole if is_whole else numbers.floats
    images = draw(*images_shape, num_in, dtype=dtype)
    gradient = draw(*outputs_shape, dtype=dtype)
    draw_kernel = numbers.kernel if is_whole else numbers.floats
    kernel = draw_kernel(size, size, num_in, num_out)
    scale = 2.0 ** (numbers.integers(num_out) % 5 - 2)  # Exact, too.
    is_there = [numbers.below(2) for _ in range(4)]
    if epilogue:
        is_there = [epilogue == "full"] * 4
    yield ops.resnet_conv2d(
        images=images,
        kernel=kernel,
        scale=[scale.astype(np.float32)] * is_there[0],
        bias=[numbers.floats(num_out)] * is_there[1],
        residual=[numbers.floats(*outputs_shape, dtype=dtype)] * is_there[2],
        stride=stride,
        relu=bool(is_there[3]),
    )
    yield ops.resnet_conv2d_input_gradient(images.shape, kernel, gradient, stride)
    yield ops.resnet_conv2d_kernel_gradient(images, gradient, size, stride)


def _maps(numbers: Numbers) -> Iterator[tuple[int, ...]]:
    """Shapes of feature maps, most of them with channels that fill no vector."""
    for number in range(_MAPS):
        side, channels = (9, 140) if number % 5 == 0 else (4, 40)
        sides = 1 + numbers.below(side), 1 + numbers.below(side)
        yield (1 + numbers.below(3), *sides, 1 + numbers.below(channels))
    yield (2, 20, 20, 64)
    for _ in range(8):  # With each combination of what else is chosen by the number.
        yield (1, 3, 3, 520)


def _normalization(numbers: Numbers, dtype: tf.DType) -> Results:
    ops: Any = native.ops()
    for number, shape in enumerate(_maps(numbers)):
        x = numbers.floats(*shape, dtype=dtype)
        relu = bool(number % 2)
        gamma, beta = numbers.floats(shape[-1]), numbers.floats(shape[-1])
        num_residuals, copies = number // 2 % 2, 1 + number // 4 % 2
        residual = [numbers.floats(*shape, dtype=dtype)] * num_residuals
        outputs = ops.resnet_batch_norm(
            x, gamma, beta, residual, copies, 2.0**-16, relu
        )
        yield outputs
        saved = gamma, beta, outputs.mean, outputs.inverse_stddev
        yield ops.resnet_normalize(x, *saved, relu)
        dys = [numbers.floats(*shape, dtype=dtype) for _ in range(copies)]
        yield ops.resnet_batch_norm_grad(
            dys, x, outputs.positive, *saved, num_residuals, relu
        )


def _pooling(numbers: Numbers, dtype: tf.DType) -> Results:
    ops: Any = native.ops()
    for shape in _maps(numbers):
        x = numbers.floats(*shape, dtype=dtype)
        settings = {
            "window": [1 + numbers.below(3), 1 + numbers.below(3)],
            "stride": 1 + numbers.below(3),
            "padding": numbers.choice(("same", "symmetric")),
        }
        if min(shape[1:3]) >= 3 and numbers.below(2):
            settings["padding"] = "valid"
        outputs = ops.resnet_max_pool(x=x, **settings)
        yield outputs
        dy = numbers.floats(*outputs.y.shape, dtype=dtype)
        yield ops.resnet_max_pool_grad(dy, outputs.places, shape, **settings)
        yield ops.resnet_global_mean(x)
        dy = numbers.floats(*shape[::3], dtype=dtype)
        yield ops.resnet_global_mean_grad(dy, shape)


def _activations(numbers: Numbers, dtype: tf.DType) -> Results:
    ops: Any = native.ops()
    shapes = [shape for _ in range(4) for shape in _maps(numbers)]
    for number, shape in enumerate(shapes):  # Each function has its own edges.
        x = numbers.floats(*shape, dtype=tf.float32) * np.float32(4)
        x = x.astype(dtype.as_numpy_dtype)
        num_gates, copies = number // 3 % 2, 1 + number // 6 % 2
        inputs = {
            "x": x,
            "gate": [numbers.floats(*shape[::3])] * num_gates,
            "residual": [numbers.floats(*shape, dtype=dtype)] * num_gates,
            "activation": ("relu", "silu", "mish")[number % 3],
        }
        yield ops.resnet_activate(**inputs, num_copies=copies)
        dys = [numbers.floats(*shape, dtype=dtype) for _ in range(copies)]
        yield ops.resnet_activate_grad(dy=dys, **inputs)
        other = numbers.choice(_FORMATS)
        yield ops.resnet_gelu(x, other)
        yield ops.resnet_gelu_grad(numbers.floats(*shape, dtype=other), x)


def _images(_: Numbers, path: pathlib.Path) -> Results:
    ops: Any = native.ops()
    keys = {"image_key": tf_example.ENCODED, "label_key": tf_example.LABEL}
    encoded, label = ops.resnet_read_example(path=str(path), offset=0, **keys)
    yield encoded, label
    place = path.read_bytes().index(JPEG), len(JPEG), google_crc32c.value(JPEG)
    yield ops.resnet_read_image(str(path), *place)
    image = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE")
    yield image
    # Where weights and factors have few bits, all sums are exact. The versions of this
    # op for several CPUs don't fuse the same products, and the best one always runs.
    for height, width in ((5, 3), (10, 24), (20, 6), (20, 96), (40, 48), (80, 12)):
        for is_mirrored in (False, True):
            mean, stddev = [123.0, 117.0, 104.0], [64.0, 32.0, 128.0]
            size = [height, width]
            yield ops.resnet_resize_bicubic(image, size, is_mirrored, mean, stddev)


def _updates(numbers: Numbers, _: pathlib.Path) -> Results:
    ops: Any = native.ops()

    for number in range(_UPDATES):
        nesterov = bool(number % 2)
        sizes = [1 + number, 1 + numbers.below(5_000)]
        # Weights, velocities and an average.
        variables = [tf.Variable(numbers.floats(n)) for n in (*sizes, *sizes, sizes[0])]
        handles = [variable.handle for variable in variables]
        inputs = {
            "variables": handles[:2],
            "velocities": handles[2:4],
            "gradients": [numbers.floats(size) for size in sizes],
            "learning_rate": 0.1,
            "momentum": 0.9,
            "nesterov_momentum": 0.9,
            "nesterov": nesterov,
            "weight_decays": [0.0, 1e-4],
        }
        ops.resnet_momentum(**inputs)
        yield variables[:4]
        ops.resnet_move_averages(
            averages=handles[4:], statistics=[numbers.floats(sizes[0])], steps=[0.1]
        )
        yield ops.resnet_digests(wanted=True, tensors=inputs["gradients"])
        applied = tf.Variable(tf.zeros([9], tf.int64))
        for closure in range(2):
            yield ops.resnet_server_update(
                **inputs,
                averages=handles[4:],
                statistics=[numbers.floats(sizes[0])],
                applied=applied.handle,
                number=tf.constant(closure, tf.int64),
                read_at=tf.constant(0, tf.int64),
                inverse_staleness=nesterov,
                average_step=0.1,
            )
        yield variables, applied


def _messages(numbers: Numbers, _: pathlib.Path) -> Results:
    """Each message is cut, if it can be, and decoded, as the mean of two ranks too."""
    ops: Any = native.ops()
    for size in _CODED:
        values = numbers.floats(size)
        stream = np.array([numbers.below(1 << 24) for _ in range(4)], np.int64)
        sent = [ops.resnet_encode_ternary(values, stream)]
        for states, bucket, norm in ((1, 0, "max"), (4, 64, "l2"), (15, 512, "max")):
            settings = {"states": states, "bucket": bucket, "norm": norm}
            sent.append(ops.resnet_encode_qsgd(values, stream, **settings))
        few = -(-size // 9)
        for count, kept in ((1, "float32"), (few, "bfloat16"), (few, "2bit")):
            threshold = ops.resnet_topk_threshold(values, tf.constant(count, tf.int64))
            yield threshold
            sent.append(ops.resnet_encode_sparse(values, threshold, kept_values=kept))
        coded = [of.message for of in sent]
        yield coded, [of.left for of in sent]
        for kind, dtype in (
            (messages.DENSE, np.float32),
            (messages.FLOAT16, np.float16),
            (messages.BFLOAT16, tf.bfloat16.as_numpy_dtype),
        ):
            body = values.astype(dtype).tobytes()
            header = struct.pack("<IBBH", HEADER_BYTES + len(body), kind, 0, 0)
            coded.append(tf.constant(np.frombuffer(header + body, np.uint8)))
        first = size // 2 // 2_560 * 2_560  # What all kinds can be cut at.
        for message in coded:
            yield messages.decode_mean(message, [size], 1)
            twice = tf.concat([message, message], axis=0)
            yield messages.decode_mean(twice, [size], 2)
            if first:
                yield messages.cut(message, [first, size - first])


_ON_ANY_CPU: dict[str, Callable[[Numbers, tf.DType], Results]] = {
    "pooling": _pooling,
    "activations": _activations,
}
_OF_FORMAT: dict[str, Callable[[Numbers, tf.DType], Results]] = {
    "convolutions": _convolutions,
    "Winograd's convolutions": _winograd,
    "normalization": _normalization,
    **_ON_ANY_CPU,
}
_WITHOUT_FORMAT: dict[str, Callable[[Numbers, pathlib.Path], Results]] = {
    "reading and resizing": _images,
    "updates": _updates,
    "compression": _messages,
}
