"""A profile of one step by kind of op, from TensorFlow's profiler."""

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

EXCHANGE = "gradient exchange"
OTHER = "other"
# An op belongs to the first kind whose pattern is found in the op's type. The compiled
# ops have their own names; oneDNN adds a prefix and a suffix to those of stock ops.
KINDS = (
    ("weight gradients", "Conv2DBackpropFilter|Conv2DKernelGradient"),
    ("data gradients", "Conv2DBackpropInput|Conv2DInputGradient"),
    ("forward convolution", "Conv2D"),
    ("batch normalization backward", "BatchNorm.*Grad|ResnetNormalize"),
    ("batch normalization forward", "BatchNorm"),
    ("optimizer", "Momentum"),
    (EXCHANGE, "Horovod"),
    ("casts", "Cast$"),
    ("pad and slice", "^(_Mkl)?(Pad|PadV2|Slice|StridedSlice|StridedSliceGrad)$"),
    (
        "elementwise",
        "^(_Mkl)?(Add|AddV2|AddN|Sub|Mul|RealDiv|Relu|ReluGrad|Rsqrt|Maximum|SelectV2"
        "|Greater|AssignSubVariableOp)$",
    ),
)
MIN_SHOWN_MILLISECONDS = 0.05  # Faster types of ops are left out of the table.
INPUT = "input pipeline, overlapped with the step"
_OP_EVENT = re.compile(r"[^:]+:(\w+)")  # `node:type`; C++ scopes have two colons.
_ASYNC_START = "ExecutorState::ProcessAsync::Start"
_ASYNC_DONE = "ExecutorState::ProcessAsync::Done"
_INPUT_THREADS = "tf_data"


@dataclass(frozen=True)
class Profile:
    """The time of one step on rank 0, by kind of op.

    The times of ops, by kind and type, are without those of nested ops. The kinds add
    up to more than the step if several ops run concurrently. The gradient exchange
    counts only while no op runs. Idle is the time in which neither ran, such as the
    overhead of the executor.
    """

    milliseconds: Mapping[str, Mapping[str, float]]
    num_ops: Mapping[str, int]
    step_milliseconds: float
    idle_milliseconds: float

    def as_dict(self) -> dict[str, float]:
        """Returns the milliseconds by kind, largest first."""
        times = {kind: sum(types.values()) for kind, types in self.milliseconds.items()}
        times = dict(sorted(times.items(), key=lambda item: -item[1]))
        times |= {"idle": self.idle_milliseconds, "step": self.step_milliseconds}
        return {kind: round(value, 3) for kind, value in times.items()}

    def table(self) -> str:
        """Returns the kinds with their share of the step and their ops."""
        lines = [f"{'kind of op':32} {'ms':>9} {'share':>6} {'ops':>5}"]
        for kind, milliseconds in self.as_dict().items():
            share = f"{milliseconds / self.step_milliseconds:6.1%}"
            line = f"{kind:32} {milliseconds:9.1f} {share if kind != 'step' else ''}"
            if kind in self.milliseconds:
                of_kind = self.milliseconds[kind].items()
                types = sorted(of_kind, key=lambda item: -item[1])
                shown = [item for item in types if item[1] >= MIN_SHOWN_MILLISECONDS]
                names = ", ".join(f"{name} {ms:.1f}" for name, ms in shown or types[:1])
                line += f" {self.num_ops[kind]:5}  {names}"
            lines.append(line.rstrip())
        return "\n".join(lines)


def record(step: Callable[[], object]) -> Profile:
    """Runs a step under the profiler and returns its time by kind of op."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        try:
            start = time.perf_counter()
            step()
            seconds = time.perf_counter() - start
        finally:
            tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    return summarize(space, 1000 * seconds)


def summarize(space: xplane_pb2.XSpace, step_milliseconds: float) -> Profile:
    """Returns the time of a recorded step of this duration by kind of op."""
    milliseconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    num_ops: dict[str, int] = defaultdict(int)
    computing: list[Interval] = []
    for thread, events in _op_events(space):
        is_input = thread.startswith(_INPUT_THREADS)
        for op_type, self_picoseconds in _self_times(events):
            kind = INPUT if is_input else kind_of(op_type)
            milliseconds[kind][op_type] += self_picoseconds / 1e9
            num_ops[kind] += 1
        if not is_input:
            computing += [(start, end) for start, end, _ in events]
    busy = _length_of_union(computing)
    if exchanges := _exchanges(space):
        exposed = _length_of_union(computing + exchanges) - busy
        milliseconds[EXCHANGE] = {"while no op runs": exposed / 1e9}
        num_ops[EXCHANGE] = len(exchanges)
        busy += exposed
    idle = max(step_milliseconds - busy / 1e9, 0.0)
    return Profile(milliseconds, num_ops, step_milliseconds, idle)


def kind_of(op_type: str) -> str:
    """Returns the kind of an op, by the name of its type."""
    kinds = (kind for kind, pattern in KINDS if re.search(pattern, op_type))
    return next(kinds, OTHER)


Interval = tuple[int, int]  # Start and end in picoseconds.
Event = tuple[int, int, str]  # Start and end in picoseconds, and the op's type.


def _op_events(space: xplane_pb2.XSpace) -> Iterator[tuple[str, list[Event]]]:
    """Yields the name of each thread and the events of its ops.

    Events of the executor and of function calls, which enclose ops, are left out.
    """
    for plane in space.planes:
        for line in plane.lines:
            events = []
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if match := _OP_EVENT.fullmatch(name):
                    start = _start(line, event)
                    events.append((start, start + event.duration_ps, match[1]))
            yield line.name, events


def _exchanges(space: xplane_pb2.XSpace) -> list[Interval]:
    """Returns the interval of each all-reduce, from its op's start to its end.

    An asynchronous op occupies no thread, so its start and its end are two events.
    """
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                times = {_ASYNC_START: starts, _ASYNC_DONE: ends}.get(name)
                if times is None:
                    continue
                stats = _text_stats(plane, event)
                if kind_of(stats.get("kernel_type", "")) == EXCHANGE:
                    times[stats["name"]] = _start(line, event)
    return [(starts[name], ends[name]) for name in starts if name in ends]


def _text_stats(plane: xplane_pb2.XPlane, event: xplane_pb2.XEvent) -> dict[str, str]:
    """Returns the statistics of an event whose values are texts, by name."""
    texts = {}
    for stat in event.stats:
        name = plane.stat_metadata[stat.metadata_id].name
        if stat.WhichOneof("value") == "ref_value":
            texts[name] = plane.stat_metadata[stat.ref_value].name
        elif stat.WhichOneof("value") == "str_value":
            texts[name] = stat.str_value
    return texts


def _start(line: xplane_pb2.XLine, event: xplane_pb2.XEvent) -> int:
    return 1000 * line.timestamp_ns + event.offset_ps


def _self_times(events: Iterable[Event]) -> list[tuple[str, int]]:
    """Returns each op's type and its time without that of nested ops."""
    times: list[int] = []
    types: list[str] = []
    around: list[tuple[int, int]] = []  # End and index of each enclosing op.
    for start, end, op_type in sorted(events, key=lambda event: (event[0], -event[1])):
        while around and around[-1][0] <= start:
            around.pop()
        if around:
            times[around[-1][1]] -= min(end, around[-1][0]) - start
        around.append((end, len(times)))
        times.append(end - start)
        types.append(op_type)
    return list(zip(types, times, strict=True))


def _length_of_union(intervals: Iterable[Interval]) -> int:
    total = covered_to = 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, covered_to))
        covered_to = max(covered_to, end)
    return total
