"""Make the README fit for a package index, where relative links lead nowhere.

takes: README.md and the address `Source` of pyproject.toml; gives: the `readme` of the package, in
which every relative link leads to the file of this version in the repository.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")


def with_absolute_links(text: str, base: str) -> str:
    """Let the relative links of a text in Markdown begin with `base`."""
    return RELATIVE.sub(lambda link: f"]({base}/{link[1]})", text)


class CustomMetadataHook(MetadataHookInterface):
    """What hatchling asks for the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        base = f"{metadata['urls']['Source']}/blob/v{metadata['version']}"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, base),
        }
