"""What `python -m tvm_forest` runs: the command line.

takes: a command line; gives: the exit status.
"""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
