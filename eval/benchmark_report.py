"""The benchmark's figures, as a table and as JSON."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.benchmark_settings import Settings


@dataclass(frozen=True)
class Limits:
    """What the machine can do, with all ranks at work: the best of some tries.

    Attributes:
        matmul_gflops: 10**9 operations a second of a product of large matrices.
        convolution_gflops: The same of a 3x3 convolution, forward.
        copy_gigabytes: 10**9 bytes a second that a copy reads and writes.
    """

    matmul_gflops: float
    convolution_gflops: float
    copy_gigabytes: float


@dataclass(frozen=True)
class Report:
    """What all ranks measured.

    Attributes:
        settings: What was measured, its precision no longer "auto".
        image_size: In pixels.
        num_ranks: All ranks.
        num_intra_threads: Of each rank.
        num_inter_threads: Of each rank.
        compiled_ops: Whether they were used.
        versions: Of the libraries, by name.
        images_per_second: Of all ranks together, in each timed step.
        step_seconds: Of each timed step, of the slowest rank.
        first_step_seconds: Of the slowest rank.
        start_seconds: The same, from the start of the process.
        peak_memory_mb: Of the rank with the most.
        waited_share: Of its time, by the rank that waited most for its images; None
            without a data set.
        flops_per_image: Floating-point operations.
        limits: What all ranks can do at most.
        profile: Milliseconds of a step by kind of op, if it was profiled.
    """

    settings: Settings
    image_size: int
    num_ranks: int
    num_intra_threads: int
    num_inter_threads: int
    compiled_ops: bool
    versions: dict[str, str]
    images_per_second: tuple[float, ...]
    step_seconds: tuple[float, ...]
    first_step_seconds: float
    start_seconds: float
    peak_memory_mb: float
    waited_share: float | None
    flops_per_image: int
    limits: Limits
    profile: dict[str, float] | None = None

    @property
    def gflops(self) -> float:
        """10**9 floating-point operations a second, by the median."""
        return statistics.median(self.images_per_second) * self.flops_per_image / 1e9

    def as_dict(self) -> dict[str, Any]:
        """Returns figures and settings for JSON."""
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
            "waited_share": self.waited_share,
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
            "ranks": self.num_ranks,
            "num_intra_threads": self.num_intra_threads,
            "num_inter_threads": self.num_inter_threads,
            "cpu": cpu_name(),
            "versions": self.versions,
        }

    def table(self) -> str:
        """Returns the figures for people."""
        settings = self.settings
        work = "evaluation" if settings.infer else "training"
        if self.num_ranks > 1 and not (settings.infer or settings.average_gradients):
            work += " without exchange of gradients"
        versions = ", ".join(f"{name} {one}" for name, one in self.versions.items())
        lines = [
            f"{settings.model}, {work}, {settings.precision}, {self.image_size} px,"
            f" {self.num_ranks} rank(s) x {settings.batch_size} images,"
            f" {self.num_intra_threads} + {self.num_inter_threads} thread(s) each",
            f"images from {settings.data_dir or 'memory'};"
            f" {'compiled' if self.compiled_ops else 'stock'} ops; {versions};"
            f" {cpu_name()}",
            f"{'':28} {'median':>10} {'min':>10} {'max':>10}",
            _row("images/s, all ranks", self.images_per_second),
            _row("seconds a step", self.step_seconds, 3),
            _line("first step", f"{self.first_step_seconds:.1f} s: the graph is made"),
            _line("from start to its end", f"{self.start_seconds:.1f} s"),
            _line("peak memory of a rank", f"{self.peak_memory_mb:,.0f} MB"),
        ]
        if self.waited_share is not None:
            share = f"{self.waited_share:.1%} of the time"
            lines.append(_line("waiting for images", share))
        operations = f"{self.flops_per_image / 1e9:.2f} GFLOP an image"
        lines.append(_line("arithmetic", f"{self.gflops:,.0f} GFLOP/s, {operations}"))
        for name, limit in (
            ("matrix product", self.limits.matmul_gflops),
            ("3x3 convolution", self.limits.convolution_gflops),
        ):
            share = f"{self.gflops / limit:.1%} of it used"
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
    """Returns what Linux calls the processor."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return "unknown CPU"
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else "unknown CPU"
