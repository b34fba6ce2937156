"""The modules of the project and their sources, for tests of imports and of flags."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("resnet", "data_prep", "launch", "eval")
MAINS = {
    "resnet.resnet_main",
    "eval.resnet_eval",
    "eval.predict",
    "eval.export",
    "eval.learning_curve",
    "eval.report",
    "eval.benchmark",
    "eval.verify",
    "eval.selftest",
    "eval.lab.compression_study",
    "eval.lab.input_rate",
    "eval.lab.imagenet_scale",
    "eval.lab.checkpoint_cost",
    "eval.lab.sync_modes",
    "eval.lab.dawnbench_log",
    "eval.lab.exchange_cost",
    "eval.lab.thread_balance",
    "eval.launched_ranks",
    "launch.estimate",
    "launch.parameter_server_job",
    "launch.place_shards",
    "launch.plan",
    "launch.supervise",
    "resnet.watchdog.monitor",
    "data_prep.imagenet_to_tfrecords",
    "data_prep.digits",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
