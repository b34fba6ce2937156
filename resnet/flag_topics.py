"""The topics of the flags of training, in the order in which --help prints them."""

from resnet.base.program_help import Topic

DATA = Topic(
    "Data set and run",
    ("data_dir", "model_dir"),
    ("shard_by", "require_mixed", "on_bad_record", "record_log", "decoded_cache_mb"),
)
MACHINE = Topic(
    "Machine",
    ("precision", "num_intra_threads", "num_inter_threads"),
    ("num_parallel_calls", "kmp_blocktime", "use_tpu", "stall_seconds"),
)
COMPRESSION = Topic(
    "Compressed gradients (docs/compression.md)",
    ("compress", "method", "ratio", "qstates", "error_feedback"),
    (
        *("qsgd_bucket", "qsgd_norm", "powersgd_rank", "threshold", "kept_values"),
        *("dense_below", "dgc_warmup_epochs", "exchange"),
    ),
)
LOCAL_SGD = Topic(
    "Local SGD (docs/local_sgd.md)",
    ("sync_every",),
    ("qsr_coefficient", "local_velocities", "outer_momentum"),
)
TRAINING = (
    DATA,
    Topic(
        "Recipe, phases and length (docs/recipes.md)",
        (
            *("recipe", "list_recipes", "explain", "model", "train_batch_size"),
            *("train_epochs", "train_steps"),
        ),
        (
            *("explain_plot", "num_ranks", "resnet_depth", "resnet_variant"),
            *("activation", "se_ratio", "blur_pool"),
            *("image_size", "first_phase", "seed"),
        ),
    ),
    Topic(
        "Learning rate and optimizer",
        ("peak_learning_rate", "warmup_epochs", "optimizer", "weight_decay"),
        (
            *("base_learning_rate", "warmup_steps", "momentum", "clip_norm"),
            *("ema_decay", "layer_rates", "accumulation_steps", "bn_momentum"),
            "freeze_batch_norm",
        ),
    ),
    Topic(
        "Augmentation and labels",
        ("augmentation",),
        ("random_augment", "mixup", "cutmix", "label_smoothing", "loss"),
    ),
    COMPRESSION,
    LOCAL_SGD,
    Topic(
        "Asynchronous training (docs/async.md)",
        ("sync_mode", "num_ps"),
        ("max_staleness", "staleness_rate"),
    ),
    Topic(
        "Checkpoints and weights",
        ("checkpoint_every", "initial_weights"),
        ("keep_checkpoints", "stop_after_steps", "export_dir"),
    ),
    Topic(
        "Evaluation, log and report",
        ("eval_every", "report_every", "mode"),
        (
            *("eval_batch_size", "eval_crop", "stop_at_top1", "recalibration_batches"),
            "log_step_count_steps",
        ),
    ),
    MACHINE,
)
