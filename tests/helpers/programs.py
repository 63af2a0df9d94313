"""Programs in Python that tests run in a process of their own."""

import subprocess
import sys


def run(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done
