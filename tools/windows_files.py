"""What `run_on_windows.sh` needs beside wheels: a file by its digest, and a C library for numpy.

python tools/windows_files.py fetch NAME SHA256 FOLDER     # an sdist, by pip's index
python tools/windows_files.py numpy NUMPY PYTHON           # folders; needs ziglang

Wine's C library lacks functions of complex numbers that numpy asks for, so no module of numpy
loads. A library beside python.exe has those four that numpy calls when it is imported, and leads
all others to wine's; numpy's modules are told to ask that one, under a name that is as long. Who
calls another one that is missing ends the process; this package calls none.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
THEIRS, OURS = (f"{x}pi-ms-win-crt-math-l1-1-0.dll" for x in "ax")
OWN = {
    "creal": "x.real",
    "cimag": "x.imag",
    "cabs": "hypot(x.real, x.imag)",
    "carg": "atan2(x.imag, x.real)",
}
HEAD = """\
#include <math.h>
typedef struct { double real, imag; } both;
typedef struct { float real, imag; } bothf;
"""


def find_index() -> str:
    """Return the index that pip asks, which may be a mirror."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not said:
        asked = [sys.executable, "-c", DEFAULT_INDEX]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return f"{said.rstrip('/')}/"


def fetch(name: str, digest: str, folder: Path) -> None:
    """Download a file of an index, and refuse it if its SHA-256 is another."""
    project = name.partition("-")[0].replace("_", "-")
    page = f"{find_index()}{project}/"
    asked = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text = answer.read().decode()
    try:
        urls = [x["url"] for x in json.loads(text)["files"]]
    except ValueError:  # an index that knows HTML only
        urls = re.findall(r'href="([^"]+)"', text)
    (url,) = {x.partition("#")[0] for x in urls if x.partition("#")[0].endswith(f"/{name}")}
    with urllib.request.urlopen(urljoin(page, url), timeout=300) as answer:
        data = answer.read()
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        sys.exit(f"{name}: its SHA-256 is {found}, expected {digest}; it is not what was read")
    (folder / name).write_bytes(data)


def list_imports(module: bytes) -> set[str]:
    """Return what a module for 64-bit Windows asks of THEIRS."""
    (head,) = struct.unpack_from("<I", module, 0x3C)
    count, size = struct.unpack_from("<H12xH", module, head + 6)
    (table,) = struct.unpack_from("<I", module, head + 24 + 120)
    parts = [struct.unpack_from("<4I", module, head + 24 + size + 40 * k + 8) for k in range(count)]

    def place(address: int) -> int:
        """Return where in the file an address lies."""
        return next(at + address - begin for _, begin, n, at in parts if 0 <= address - begin < n)

    def text(address: int) -> str:
        begin = place(address)
        return module[begin : module.index(b"\0", begin)].decode("ascii")

    names, at = set[str](), place(table) if table else 0
    while table and any(module[at : at + 20]):
        asked, name = struct.unpack_from("<I8xI", module, at)
        entries = itertools.count(place(asked), 8) if text(name) == THEIRS else ()
        for entry in entries:
            (address,) = struct.unpack_from("<Q", module, entry)
            if not address:
                break
            names.add(text(address + 2))  # behind a hint
        at += 20
    return names


def lead_numpy(numpy: Path, python: Path) -> None:
    """Make the library, and let numpy's modules ask it."""
    names = set[str]()
    for module in numpy.rglob("*.pyd"):
        data = module.read_bytes()
        names |= list_imports(data)
        module.write_bytes(data.replace(THEIRS.encode(), OURS.encode()))
    code, exports = HEAD, [f"LIBRARY {OURS}", "EXPORTS"]
    for name in sorted(names):
        short = name.endswith("f") and name[:-1] in OWN
        formula = OWN.get(name[:-1] if short else name)
        exports.append(f"  {name}=own_{name}" if formula else f"  {name}=ucrtbase.{name}")
        if formula:
            value, kind = ("float", "bothf") if short else ("double", "both")
            code += f"{value} own_{name}({kind} x) {{ return {formula}; }}\n"
    (python / "math.c").write_text(code, "ascii")
    (python / "math.def").write_text("\n".join([*exports, ""]), "ascii")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-O1"]
    files = [python / "math.c", python / "math.def", "-o", python / OURS]
    subprocess.run([*compiler, "-shared", *files], check=True)
    print(f"{len(names)} functions for numpy")


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "fetch":
        fetch(given[0], given[1], Path(given[2]))
    else:
        lead_numpy(Path(given[0]), Path(given[1]))
