"""ReFrame's settings for a single host: two ranks, started by the mpirun of PATH.

A site lists its own systems, whose partitions have its scheduler, launcher and modules,
and in `extras` the speed of a step there: see `StepSpeed` in suite.py.
"""

import json
import os

site_configuration = {
    "systems": [
        {
            "name": "host",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "cpu",
                    "scheduler": "local",
                    "launcher": "mpirun",
                    "max_jobs": 1,  # Else tests share the cores.
                    "environs": ["builtin"],
                    "extras": json.loads(os.environ.get("STEP_SPEED", "{}")),
                }
            ],
        }
    ]
}
