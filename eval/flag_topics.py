"""The topics of the flags of the programs that evaluate and measure, for --help."""

from resnet import flag_topics
from resnet.base.program_help import Topic

EVALUATION = (
    flag_topics.DATA,
    Topic(
        "Checkpoints",
        ("checkpoints", "weights", "combine", "watch"),
        ("watch_minutes",),
    ),
    Topic(
        "Evaluation",
        ("split", "eval_batch_size", "views"),
        ("recalibration_batches",),
    ),
    Topic("Results", ("json_file", "store_predictions")),
    flag_topics.MACHINE,
)
BENCHMARK = (
    Topic(
        "What is measured",
        ("model", "precision", "batch_size", "image_size", "data_dir", "infer"),
        ("stock_ops", "average_gradients", "on_bad_record"),
    ),
    Topic(
        "How it is measured",
        ("steps", "profile", "json", "sweep_ranks", "vs", "ranks"),
        ("warmup_steps", "pairs"),
    ),
    flag_topics.MACHINE,
)
EXCHANGE_COST = (
    Topic("What is measured", ("model", "steps", "interface"), ("warmup_steps",)),
    flag_topics.COMPRESSION,
    flag_topics.MACHINE,
)
