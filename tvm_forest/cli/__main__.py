"""What `python -m tvm_forest.cli` runs."""

import sys

from . import main

sys.exit(main())
