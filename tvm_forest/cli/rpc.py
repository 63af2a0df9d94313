"""The command `rpc`: lets other machines measure schedules on this one."""

import argparse
import signal
import sys
import threading

from ..search.measuring import remote
from ..system.process.ending import ENDING


def run(options: argparse.Namespace) -> None:
    """Serve clients (`tune --remote`) until a signal ends the process.

    Raises:
        InputError: see `remote.serve`.
    """
    server = remote.serve(options.host, options.port)
    for number in ENDING:
        signal.signal(number, lambda *_: sys.exit(0))  # so that `finally` ends the server
    print(f"measuring for others at {options.host}:{server.port}; Ctrl-C ends it", flush=True)
    try:
        threading.Event().wait()
    finally:
        server.terminate()
