"""The training program, whose watchdogs let an untimed activity take 60 seconds."""

import sys

from resnet import resnet_main
from resnet.base import program
from resnet.watchdog import client

LIMIT_SECONDS = 60.0
_SHORTEN = f"""
from resnet.watchdog import stalls
stalls._UNTIMED_FACTOR = 0
stalls._MIN_UNTIMED_SECONDS = {LIMIT_SECONDS}
"""

if __name__ == "__main__":
    start = "from resnet.watchdog.monitor import main\n"
    assert start in client._START
    client._START = client._START.replace(start, _SHORTEN + start)
    sys.exit(program.run(resnet_main.main))
