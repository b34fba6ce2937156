"""The topics of the flags of the programs that plan a job, for --help."""

from resnet import flag_topics
from resnet.base.program_help import Topic

PLAN = (
    Topic(
        "Nodes, stated or read",
        (
            *("num_nodes", "sockets", "cores_per_socket", "memory_gb", "probe"),
            *("hosts", "topology"),
        ),
        ("threads_per_core", "numa_per_socket"),
    ),
    Topic(
        "Job and output",
        ("launcher", "job", "print", "check", "run", "ranks_per_node"),
        (
            *("num_servers", "run_name", "time_limit", "partition", "srun_mpi"),
            *("stage_from", "bundle", "clone"),
        ),
    ),
    Topic(
        "Training, whose other flags --helpfull lists",
        ("recipe", "train_batch_size", "data_dir", "model_dir"),
    ),
    *(topic.only_in_full() for topic in flag_topics.TRAINING),
)
ESTIMATE = (
    Topic("Speed of a node", ("benchmark", "rate", "ranks_per_node"), ("step_noise",)),
    Topic("Question", ("nodes", "within", "plot", "json"), ("compare_on",)),
    Topic(
        "Cluster",
        ("bandwidth_gbit", "latency_us"),
        ("allreduce", "overlap", "shared_disk_gbit", "image_kilobytes"),
    ),
    Topic(
        "Training",
        ("recipe", "model", "train_batch_size", "train_epochs", "train_steps"),
        ("num_classes",),
    ),
    flag_topics.COMPRESSION,
    flag_topics.LOCAL_SGD,
)
