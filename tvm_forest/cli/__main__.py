"""What `python -m tvm_forest.cli` runs."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
