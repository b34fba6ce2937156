"""Clusters and trainings to estimate, for several tests."""

from launch.estimating.workload import Workload
from resnet.config.compression import CompressionSettings
from resnet.models import names

TOPK = CompressionSettings(
    compress="layerwise", method="topk", ratio=0.01, error_feedback=True
)


def resnet50(
    batch: int,
    num_classes: int = 1000,
    num_steps: int = 1000,
    sync_every: int = 1,
    **given,
) -> Workload:
    """Returns a training of ResNet-50 with so many images a step."""
    is_local = sync_every > 1
    return Workload(
        global_batch_size=batch,
        num_steps=num_steps,
        num_values=names.num_parameters("resnet50", num_classes),
        num_exchanges=0 if is_local else num_steps,
        num_averages=num_steps // sync_every if is_local else 0,
        **given,
    )
