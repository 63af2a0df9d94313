"""A short run of `tools/sanitize.py`: exported C under sanitizers, which find what is planted."""

from __future__ import annotations

from pathlib import Path

import pytest

import sanitize

MODELS, CALLS = 2, 2000

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sources of models."""
    if sanitize.compiler() is None:
        pytest.skip("no C compiler here has sanitizers")
    found = tmp_path_factory.mktemp("models")
    sanitize.export(found, MODELS)
    return found


@pytest.mark.parametrize("kind", sanitize.FLAGS)
def test_exported_models_run_clean_under_sanitizers(folder: Path, kind: str) -> None:
    counts = sanitize.check(folder, kind, MODELS, CALLS)
    assert counts["wrong"] == 0 and counts["calls"] >= CALLS
    assert min(counts["equal"], counts["refused"], counts["loads"]) > 0


@pytest.mark.parametrize(
    "sound, damaged, said",
    [
        pytest.param(
            "code = share_out(whole, n_jobs);",
            "code = share_out(whole, n_jobs), margin[n * OUTPUTS] = 0;",
            "heap-buffer-overflow",
            id="a write beyond the margins",
        ),
        pytest.param(
            "n > MOST_ROWS ?",
            "0 ?",
            "runtime error|ERROR|wrong",  # sizes overflow
            id="any number of rows",
            marks=pytest.mark.rare,
        ),
    ],
)
def test_what_is_planted_is_found(folder: Path, sound: str, damaged: str, said: str) -> None:
    source = folder / "m0/source/library.c"
    text = source.read_text()
    assert sound in text
    source.write_text(text.replace(sound, damaged))
    try:
        with pytest.raises(AssertionError, match=said):
            sanitize.check(folder, "address,undefined", MODELS, CALLS)
    finally:
        source.write_text(text)
