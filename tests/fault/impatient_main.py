"""The training program, whose watchdogs let an untimed activity take 60 seconds."""

from resnet import resnet_main
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
    resnet_main.run()
