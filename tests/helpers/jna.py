"""Exported libraries, called from Java by JNA.

takes: libraries, forests, rows; gives: margins, all computed in one process.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_forest.forest import Forest
from tvm_forest.runtime.results import result_dtype

JARS = ("/usr/share/java/jna.jar", "/usr/share/java/jna-5.13.0.jar")
PROGRAM = """
import com.sun.jna.*;
import java.nio.file.*;

public class Many {
  interface Model extends Library {
    long tvm_forest_outputs();
    int tvm_forest_predict(Pointer rows, long n, Pointer margin, Pointer value, int jobs);
    String tvm_forest_error();
  }

  public static void main(String[] names) throws Exception {
    for (int k = 0; k < names.length; k += 5) {
      Model model = Native.load(names[k], Model.class);
      byte[] given = Files.readAllBytes(Path.of(names[k + 1]));
      Memory rows = new Memory(given.length);
      rows.write(0, given, 0, given.length);
      long n = Long.parseLong(names[k + 3]);
      int size = (int) (n * model.tvm_forest_outputs()) * Integer.parseInt(names[k + 4]);
      Memory margin = new Memory(size);
      if (model.tvm_forest_predict(rows, n, margin, null, 1) != 0)
        throw new Exception(model.tvm_forest_error());
      Files.write(Path.of(names[k + 2]), margin.getByteArray(0, size));
    }
  }
}
"""


@functools.cache
def find_jna() -> str:
    """Return the file of JNA; "" if there is none."""
    return next((jar for jar in JARS if Path(jar).exists()), "")


def why_not() -> str:
    """Say what is missing; "" if nothing."""
    if shutil.which("javac") is None:
        return "no javac"
    return "" if find_jna() else "no JNA (libjna-java)"


def run_java(
    libraries: Sequence[Path], forests: Sequence[Forest], rows: Sequence[Any], folder: Path
) -> list[Any]:
    """Return the margins of each library's rows."""
    (folder / "Many.java").write_text(PROGRAM)
    subprocess.run(["javac", "-cp", find_jna(), "Many.java"], cwd=folder, check=True)
    command = ["java", "-cp", f"{find_jna()}:{folder}", "Many"]
    dtypes = [np.dtype(result_dtype(forest, "margin")) for forest in forests]
    for k, (library, each, dtype) in enumerate(zip(libraries, rows, dtypes, strict=True)):
        each.tofile(folder / f"rows{k}")
        places = (library, folder / f"rows{k}", folder / f"margin{k}")
        command += [*map(str, places), str(len(each)), str(dtype.itemsize)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [np.fromfile(folder / f"margin{k}", dtype) for k, dtype in enumerate(dtypes)]
