"""The notebooks: run, kept with what they show, and made into pages of the site.

python tools/stored_notebooks.py [NAME ...]        # or: make notebooks

takes: notebooks/*.ipynb; gives: the same with the outputs of today, or Markdown and pictures.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PICTURES = {"image/svg+xml": ".svg", "image/png": ".png"}
"""Forms of pictures, and how names of files end that hold them."""


def run(path: Path) -> Any:
    """Run a notebook from top to bottom, and return it with its outputs and nothing of today."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(path.parent))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_chatter(output)]
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def _is_chatter(output: Any) -> bool:
    """Whether an output is what TVM's runtime says of each constant that it saves and loads."""
    lines = output.get("text", "").splitlines() if output.get("name") == "stderr" else []
    return bool(lines) and all("Warning: Scope " in line for line in lines)


def list_forms(cell: Any) -> list[tuple[str, ...]]:
    """Return the kinds of a cell's outputs, such as `("stream", "stdout")`, once each."""
    kinds = []
    for output in cell["outputs"]:
        forms = sorted(output["data"]) if "data" in output else [output.get("name", "")]
        kinds.append((output["output_type"], *forms))
    return sorted(set(kinds))


def join(text: str | list[str]) -> str:
    """Return a text of a notebook, which may lie there line by line."""
    return text if isinstance(text, str) else "".join(text)


def to_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by the names of their files."""
    lines, pictures = list[str](), dict[str, bytes]()
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = join(cell["source"])
        lines += [source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```", ""]
        for output in cell.get("outputs", ()):
            lines += [*_to_lines(output, f"{path.stem}_{len(pictures) + 1}", pictures), ""]
    return "\n".join(lines), pictures


def _to_lines(output: Any, name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """Yield Markdown for an output, and put its picture under `name` to the others."""
    data = output.get("data", {})
    form = next((form for form in PICTURES if form in data), None)
    text = join(output["text"] if "text" in output else data["text/plain"]).rstrip("\n")
    if form is None:
        yield from ("```text", text, "```")
        return
    content, file = join(data[form]), f"{name}{PICTURES[form]}"
    pictures[file] = base64.b64decode(content) if form == "image/png" else content.encode()
    words = text.splitlines()[0].strip("<>") if form == "image/svg+xml" else "A plot"
    yield f"![{words.replace('[', '(').replace(']', ')')}]({file})"


if __name__ == "__main__":
    import nbformat

    os.environ |= {"TVM_FOREST_MACHINE": "off", "TVM_FOREST_CACHE": "off"}  # nobody's own
    for notebook in NOTEBOOKS:
        if len(sys.argv) == 1 or notebook.stem in sys.argv[1:]:
            nbformat.write(run(notebook), notebook)
            print(f"{notebook.stem}: {notebook.stat().st_size / 1000:.0f} kB")
