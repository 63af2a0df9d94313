"""What MkDocs calls while it builds the site.

takes: pages of docs/, README.md and other pages of the repository, the parser of the command line,
pictures, notebooks; gives: pages whose links lead where they lead in the repository.

One text stands in one place: README.md is the first page, and CONTRIBUTING.md and others are pages
too. Links to files that are no pages lead to the file in the repository, whose address stands in
pyproject.toml.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository outside docs/, and what they are called on the site."""
COMMANDS = "reference/command_line.md"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^ *(```|~~~)")


def on_config(config: Any) -> Any:
    """Say where the repository is, and what draws pictures and reads notebooks."""
    sys.path += [str(ROOT / "tests" / "helpers"), str(ROOT / "tools")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config["site_url"] = project["urls"]["Documentation"]
    config["repo_url"] = project["urls"]["Source"]
    config["repo_name"] = "Source"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere or are made here."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, COMMANDS, content=describe_commands()))
    for name, draw in load_pictures().items():
        files.append(File.generated(config, f"pictures/{name}.svg", content=draw().svg))
    for name, plot in draw_studies().items():
        files.append(File.generated(config, f"studies/{name}", content=plot))
    for path, (page, pictures) in load_notebooks().items():
        files.append(File.generated(config, path, content=page))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def load_notebooks() -> dict[str, tuple[str, dict[str, bytes]]]:
    """Return notebooks as Markdown with their pictures, by the names of their pages."""
    from stored_notebooks import NOTEBOOKS, to_page

    return {f"notebooks/{path.stem}.md": to_page(path) for path in NOTEBOOKS}


def load_pictures() -> dict[str, Any]:
    """Return functions that draw the pictures, by name."""
    from site_pictures import PICTURES

    return PICTURES


def draw_studies() -> dict[str, str]:
    """Return the plots of the studies, by the names of their files."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks", "study", "--plots", folder]
        subprocess.run(command, cwd=ROOT, check=True)
        return {x.name: x.read_text(encoding="utf-8") for x in sorted(Path(folder).iterdir())}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links of the repository lead to pages, or to files of the repository."""
    sources = {page: source for source, page in PAGES.items()}
    here = page.file.src_uri
    root = "" if here.startswith("notebooks/") else "docs/"
    folder = ROOT / Path(sources.get(here, f"{root}{here}")).parent
    lines, is_code = [], False
    for line in markdown.split("\n"):
        is_code ^= bool(FENCE.match(line))
        lines.append(line if is_code else LINK.sub(lambda x: move(x, folder, here, config), line))
    return "\n".join(lines)


def move(link: re.Match[str], folder: Path, here: str, config: Any) -> str:
    """Return a link as it is written on the page `here` of the site."""
    target = Path(os.path.normpath(folder / link[1]))
    if not target.exists() or not target.is_relative_to(ROOT):
        return link[0]  # MkDocs says that it is wrong
    path = target.relative_to(ROOT).as_posix()
    page = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    if target.suffix == ".ipynb":
        page = str(Path(path).with_suffix(".md"))
    if page is None:
        return f"]({config['repo_url']}/blob/main/{path}{link[2] or ''})"
    return f"]({os.path.relpath(page, Path(here).parent)}{link[2] or ''})"


def describe_commands() -> str:
    """Return the page of the command line, as its own parser describes it."""
    from tvm_forest.cli import make_parser

    os.environ["COLUMNS"] = "88"  # or the page depends on the terminal
    parser = make_parser()
    return "\n".join(["# Command line", "", *describe(parser, "tvm-forest")])


def describe(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """Yield the help of a parser and of its commands."""
    yield from (f"## {name}", "", "```text", parser.format_help().rstrip(), "```", "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, inner in action.choices.items():
                yield from describe(inner, f"{name} {command}")
