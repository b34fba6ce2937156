"""The arguments of a watchdog, with which `client` starts it."""

import argparse
import os

from resnet.watchdog.messages import TOKEN_VARIABLE


def parse(description: str | None) -> argparse.Namespace:
    """Returns the arguments, and the secret of the job as `token`.

    Args:
        description: The docstring of the program.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num_ranks", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--outlives_launcher", action="store_true")
    parser.add_argument("--stall_seconds", type=float, required=True)
    parser.add_argument("--model_dir")
    parser.add_argument("--scratch_dir")
    parser.add_argument("--shared_memory", nargs="*", default=[])
    args = parser.parse_args()
    args.token = os.environ.pop(TOKEN_VARIABLE)
    return args
