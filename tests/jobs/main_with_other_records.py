"""A program of the tests: the main job, but rank 1 sees another folder of records.

main_with_other_records.py OTHER_RECORDS FLAGS...
"""

import os
import sys

from resnet import resnet_main

other = sys.argv.pop(1)
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    sys.argv.append(f"--data_dir={other}")
resnet_main.run()
