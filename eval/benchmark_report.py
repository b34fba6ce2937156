"""The results of a benchmark, as a table and as JSON."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.benchmark_settings import Settings


@dataclass(frozen=True)
class Limits:
    """The measured peak rates of the machine with all ranks busy, best of several runs.

    Attributes:
        matmul_gflops: The rate of a product of large matrices, in 10**9 FLOP/s.
        convolution_gflops: The rate of a forward 3x3 convolution, in 10**9 FLOP/s.
        copy_gigabytes: The bytes that a copy reads and writes, in 10**9 per second.
    """

    matmul_gflops: float
    convolution_gflops: float
    copy_gigabytes: float


@dataclass(frozen=True)
class Report:
    """The results of all ranks together.

    Attributes:
        settings: The settings of the measurement, with a definite precision.
        image_size: The side of the images in pixels.
        num_ranks: The number of ranks.
        num_intra_threads: The number of intra-op threads per rank.
        num_inter_threads: The number of inter-op threads per rank.
        compiled_ops: Whether the compiled ops were used.
        instruction_set: The one for which their kernels are compiled, or "NONE".
        versions: The versions of the libraries, by name.
        images_per_second: The rate of all ranks together in each timed step.
        step_seconds: The duration of each timed step on the slowest rank.
        first_step_seconds: The duration of the first step on the slowest rank.
        start_seconds: The time from the start of the process to the end of the first
            step, on the slowest rank.
        peak_memory_mb: The peak memory of the rank with the most, in 10**6 bytes.
        input_wait_share: The fraction of time in which the slowest rank waited for its
            input; None without a data set.
        flops_per_image: The number of floating-point operations per image.
        limits: The measured peak rates of all ranks together.
        profile: The milliseconds of one step by kind of op, if it was profiled.
    """

    settings: Settings
    image_size: int
    num_ranks: int
    num_intra_threads: int
    num_inter_threads: int
    compiled_ops: bool
    instruction_set: str
    versions: dict[str, str]
    images_per_second: tuple[float, ...]
    step_seconds: tuple[float, ...]
    first_step_seconds: float
    start_seconds: float
    peak_memory_mb: float
    input_wait_share: float | None
    flops_per_image: int
    limits: Limits
    profile: dict[str, float] | None = None

    @property
    def gflops(self) -> float:
        """The median rate in 10**9 floating-point operations per second."""
        return statistics.median(self.images_per_second) * self.flops_per_image / 1e9

    def as_dict(self) -> dict[str, Any]:
        """Returns results and settings for JSON."""
        settings = self.settings
        numbers: dict[str, Any] = {
            "images_per_second": statistics.median(self.images_per_second),
            "min": min(self.images_per_second),
            "max": max(self.images_per_second),
            "peak_memory_mb": self.peak_memory_mb,
            "gflops": self.gflops,
            "flops_share": self.gflops / self.limits.matmul_gflops,
            "convolution_flops_share": self.gflops / self.limits.convolution_gflops,
            "matmul_gflops": self.limits.matmul_gflops,
            "convolution_gflops": self.limits.convolution_gflops,
            "copy_gigabytes_per_second": self.limits.copy_gigabytes,
            "first_step_seconds": self.first_step_seconds,
            "start_seconds": self.start_seconds,
            "input_wait_share": self.input_wait_share,
        }
        rounded = {
            name: value if value is None else round(value, 4)
            for name, value in numbers.items()
        }
        return {
            **rounded,
            "profile_ms": self.profile,
            "model": settings.model,
            "precision": settings.precision,
            "batch_size": settings.batch_size,
            "image_size": self.image_size,
            "steps": settings.steps,
            "warmup_steps": settings.warmup_steps,
            "infer": settings.infer,
            "data_dir": settings.data_dir,
            "average_gradients": settings.average_gradients,
            "compiled_ops": self.compiled_ops,
            "instruction_set": self.instruction_set,
            "ranks": self.num_ranks,
            "num_intra_threads": self.num_intra_threads,
            "num_inter_threads": self.num_inter_threads,
            "cpu": cpu_name(),
            "versions": self.versions,
        }

    def table(self) -> str:
        """Returns the results as a table."""
        settings = self.settings
        work = "evaluation" if settings.infer else "training"
        if self.num_ranks > 1 and not (settings.infer or settings.average_gradients):
            work += " without gradient exchange"
        ops = "stock ops"
        if self.compiled_ops:
            ops = f"compiled ops ({self.instruction_set})"
        versions = ", ".join(f"{name} {text}" for name, text in self.versions.items())
        lines = [
            f"{settings.model}, {work}, {settings.precision}, {self.image_size} px,"
            f" {self.num_ranks} rank(s) x {settings.batch_size} images,"
            f" {self.num_intra_threads} + {self.num_inter_threads} thread(s) each",
            f"images from {settings.data_dir or 'memory'};"
            f" {ops}; {versions}; {cpu_name()}",
            f"{'':28} {'median':>10} {'min':>10} {'max':>10}",
            _row("images/s, all ranks", self.images_per_second),
            _row("seconds per step", self.step_seconds, 3),
            _line("first step", f"{self.first_step_seconds:.1f} s, with graph tracing"),
            _line("startup to first step", f"{self.start_seconds:.1f} s"),
            _line("peak memory per rank", f"{self.peak_memory_mb:,.0f} MB"),
        ]
        if self.input_wait_share is not None:
            share = f"{self.input_wait_share:.1%} of the time"
            lines.append(_line("waiting for images", share))
        operations = f"{self.flops_per_image / 1e9:.2f} GFLOP per image"
        lines.append(_line("arithmetic", f"{self.gflops:,.0f} GFLOP/s, {operations}"))
        for name, limit in (
            ("matrix product", self.limits.matmul_gflops),
            ("3x3 convolution", self.limits.convolution_gflops),
        ):
            share = f"{self.gflops / limit:.1%} of peak"
            lines.append(_line(f"limit: {name}", f"{limit:,.0f} GFLOP/s, {share}"))
        copies = f"{self.limits.copy_gigabytes:.1f} GB/s read and written"
        lines.append(_line("limit: copies in memory", copies))
        return "\n".join(lines)


def _row(name: str, values: tuple[float, ...], digits: int = 1) -> str:
    shown = (statistics.median(values), min(values), max(values))
    return f"{name:28}" + "".join(f" {value:10,.{digits}f}" for value in shown)


def _line(name: str, text: str) -> str:
    return f"{name:28} {text}"


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the model name of the first processor in /proc/cpuinfo."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return "unknown CPU"
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else "unknown CPU"
