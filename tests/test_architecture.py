"""`ARCHITECTURE.md` leads to files and functions that are there, and says each word once."""

import re
from collections import Counter

import pytest

from code_size import PACKAGE, ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
STOPS = re.findall(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)` \|", TEXT, re.MULTILINE)
PATHS = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`", TEXT)
GLOSSARY = re.findall(
    r"^\| ([^|]+) \|", TEXT.partition("## Glossary")[2].partition("\n## ")[0], re.MULTILINE
)
WORDS = Counter(word for entry in GLOSSARY for word in entry.split(", "))


def test_the_walk_has_stops_from_the_file_to_the_prediction() -> None:
    assert STOPS[0] == ("api.py", "build") and len(STOPS) > 12


@pytest.mark.parametrize(("path", "name"), STOPS)
def test_a_stop_is_a_function_or_class_of_its_file(path: str, name: str) -> None:
    source = (PACKAGE / path).read_text(encoding="utf-8")
    assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_a_path_that_is_named_exists(path: str) -> None:
    places = [PACKAGE, ROOT, *PACKAGE.iterdir(), PACKAGE / "search"]
    assert any((place / path).exists() for place in places), path


def test_a_word_of_the_glossary_has_one_entry() -> None:
    assert {"forest", "point", "record", "twin", "sliced", "oracle"} <= set(WORDS)
    assert [word for word, entries in WORDS.items() if entries > 1] == []
