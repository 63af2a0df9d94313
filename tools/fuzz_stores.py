"""Damaged records, machines, entries of the code cache, and predictors that are compiled anew.

`CHECKS` maps a kind to what draws an input, tries it and says what became of it.
"""

from __future__ import annotations

import io
import json
import os
import random
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import _path  # noqa: F401 (what tests share)
import catboost_models
import lightgbm_models
import tvm_forest
from forests import drawn_forest
from fuzz_files import (
    Phase,
    damaged_bytes,
    damaged_json,
    damaged_manifest,
    damaged_values,
    memory_folder,
    odd_number,
    predictors,
    small_forest,
)
from tvm_forest.errors import BuildError, InputError, ModelFormatError
from tvm_forest.forest.model import ROLES
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor import saving
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search.machines import Machine, shipped_machines
from tvm_forest.search.records import (
    Journal,
    TrialRecord,
    describe_context,
    load_schedules,
    read_records,
)
from tvm_forest.system import archive
from tvm_forest.system.code_cache import CodeCache
from tvm_forest.target import Target

TYPES = ["f4", "f8", "i1", "i4", "i8", "u4", "?", "U9", "S9", ">f4", ">i4", "c8", "f2", "M8[s]"]
KEY = "0123456789abcdef" * 4


@lru_cache
def context() -> Any:
    return describe_context(small_forest(), Target())


@lru_cache
def sound_records() -> bytes:
    """Lines as tuning writes them."""
    start = tvm_forest.new_schedule(small_forest())
    told = [start, start.interleave("tree", 2), start.represent_as("packed")]
    records = [
        TrialRecord(context(), batch, sch, 0.5 / place, 0.6, 3, 1.0)
        for place, (batch, sch) in enumerate(zip((1, 1, 64), told, strict=True), 1)
    ]
    records.append(TrialRecord(context(), 64, start, None, None, 0, 1.0, "crashed"))
    return "".join(record.to_line() + "\n" for record in records).encode()


def damaged_records(data: bytes, rng: random.Random) -> bytes:
    """Change values of lines; one in some is about other things."""
    lines = [json.loads(line) for line in data.splitlines()]
    damaged_values(lines, rng)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def check_records(damage: Any, rng: random.Random, said: Phase) -> str:
    """Read records in each of the ways; what is taken is written and read again as it is."""
    data = damage(sound_records(), rng)
    with tempfile.NamedTemporaryFile(suffix=".jsonl", dir=memory_folder()) as file:
        file.write(data)
        file.flush()
        said("ours")
        try:
            records = read_records(file.name)
        except InputError as error:
            assert "; " in str(error), str(error)
            return "refused"
        for record in records:
            assert TrialRecord.from_line(record.to_line()) == record
        try:
            schedules = load_schedules(file.name, small_forest(), Target())
        except InputError:
            schedules = {}
        for batch, sch in schedules.items():
            assert isinstance(batch, int) and batch >= 1 and sch.problem() is None
        journal = Journal(context(), Path(file.name))
        assert journal.best(1) is None or journal.best(1).seconds is not None
        assert journal.find(1, Schedule(3)) is None or records
    return "taken"


def check_machine(damage: Any, rng: random.Random, said: Phase) -> str:
    """Read the description of a machine."""
    data = damage(rng.choice(shipped_machines()).to_json().encode(), rng)
    said("ours")
    try:
        machine = Machine.from_json(data.decode(errors="replace"), "machine.json")
    except InputError as error:
        assert "; " in str(error), str(error)
        return "refused"
    assert all(0 <= x < np.inf for x in machine.nanoseconds.values())
    return "taken"


# -- archives -------------------------------------------------------------------------------------


@lru_cache
def entry() -> bytes:
    """An entry of the cache."""
    whole = archive.unpack(predictors()[0], "test")
    manifest = {"key": KEY, **whole.manifest}
    return archive.pack(whole._replace(manifest=manifest))


def check_entry(damage: Any, rng: random.Random, said: Phase) -> str:
    """Read an entry of the cache: the one that was written, or none."""
    data = damage(entry(), rng)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        cache = CodeCache(Path(folder))
        os.chmod(folder, 0o700)
        (Path(folder) / f"{KEY}.code").write_bytes(data)
        said("ours")
        found = cache.read(KEY)
    if found is None:
        return "refused"
    assert found.manifest.get("key") == KEY
    return "equal" if data == entry() else "taken"


def damaged_parts(data: bytes, rng: random.Random) -> bytes:
    """Change parts of an archive, its directory too, and give it the right checksum."""
    if rng.random() < 0.4:
        return damaged_manifest(data, rng)
    if rng.random() < 0.5:
        whole = archive.unpack(data, "")
        parts = {name: _bytes_of(part) for name, part in whole.parts.items()}
        name = rng.choice(sorted(parts))
        parts[name] = damaged_bytes(parts[name], rng)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as members:
            members.writestr(zipfile.ZipInfo(archive.MANIFEST), json.dumps(whole.manifest))
            for other, part in parts.items():
                kind = zipfile.ZIP_DEFLATED if rng.random() < 0.02 else zipfile.ZIP_STORED
                members.writestr(zipfile.ZipInfo(other), part, kind)
            members.comment = bytes(64)
        data = file.getvalue()
    else:
        data = damaged_bytes(data[:-64], rng) + bytes(64)
    return data[:-64] + archive._checksum(memoryview(data))


def odd_array(array: Any, rng: random.Random) -> Any:
    """Change values, the type, the shape or the length of an array."""
    way = rng.randrange(8)
    if way == 0:
        return array.astype(rng.choice(TYPES))
    if way == 1:
        return array[: rng.randrange(len(array) + 1)] if array.ndim else array.reshape(1, 1)
    if way == 2:
        return np.concatenate([array, array[:1]]) if array.ndim else array
    if way == 3:
        return array.reshape(rng.choice([(-1,), (1, -1), (-1, 1), (*array.shape, 1), (-1, 1, 1)]))
    if way == 4:
        return np.zeros(rng.choice([(), (0,), (0, 3), (1,)]), array.dtype)
    if way == 5:
        return np.array(
            rng.choice([["x"], [b"x"], [None], [1 + 1j], [True]]), rng.choice(["U", "S"])
        )
    changed = array.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(rng.choice((1, 1, 3))):
            if changed.size:
                number = np.array(odd_number(rng), object).astype(np.float64)
                changed.flat[rng.randrange(changed.size)] = number.astype(changed.dtype)
    return changed


def damaged_arrays(data: bytes, rng: random.Random) -> bytes:
    """Change arrays, or give one the content of another; the checksum is right."""
    whole = archive.unpack(data, "")
    parts = dict(whole.parts)
    arrays = sorted(name for name in parts if name.startswith("forest/"))
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(arrays)
        if rng.random() < 0.1:
            parts[name] = parts[rng.choice(arrays)]
        elif rng.random() < 0.05:
            parts[f"forest/{rng.choice(sorted(ROLES))}.npy"] = parts[name]
        else:
            parts[name] = odd_array(parts[name], rng)
    return archive.pack(archive.Archive(whole.manifest, parts))


def doubled_keys(data: bytes, rng: random.Random) -> bytes:
    """Say a field of the manifest twice, deeply nested, or as a number that JSON does not have."""
    whole = archive.unpack(data, "")
    key = rng.choice(sorted(whole.manifest))
    odd = rng.choice(["[" * 90_000 + "]" * 90_000, "NaN", "-Infinity", "1e999", "9" * 5000, "{}"])
    text = json.dumps(whole.manifest)[:-1] + f", {json.dumps(key)}: {odd}}}"
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as members:
        warnings.simplefilter("ignore")  # a member twice
        for _ in range(rng.choice((1, 1, 2))):
            members.writestr(zipfile.ZipInfo(archive.MANIFEST), text)
        for other, part in whole.parts.items():
            members.writestr(zipfile.ZipInfo(other), _bytes_of(part))
        members.comment = bytes(64)
    made = file.getvalue()
    return made[:-64] + archive._checksum(memoryview(made))


def _bytes_of(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    file = io.BytesIO()
    np.save(file, part)
    return file.getvalue()


@lru_cache
def kinds_of_predictors() -> list[bytes]:
    """Saved predictors whose forests have every field that a forest may have."""
    kinds = [
        small_forest(),
        drawn_forest(6, 3, base=(0.1, 0.2), link="softmax", label_rule="argmax_margin", seed=3),
        lightgbm_models.MODELS["pandas_categories"](),
        lightgbm_models.MODELS["linear"](),
        catboost_models.MODELS["category_classes"](),
    ]
    forests = map(tvm_forest.load, kinds)
    return [
        saving.to_bytes(tvm_forest.build(each, schedule=tvm_forest.new_schedule(each)))
        for each in forests
    ]


def check_recompiled(rng: random.Random, said: Phase) -> str:
    """Load a predictor of which no code may run: its code is noise, or other things are."""
    whole = archive.unpack(rng.choice(kinds_of_predictors()), "test")
    code = next(name for name in whole.parts if name.startswith("code"))
    noise = {**whole.parts, code: rng.randbytes(rng.choice((0, 1, 4096)))}
    data = archive.pack(whole._replace(parts=noise))
    is_whole = rng.random() < 0.3
    if not is_whole:
        data = rng.choice((damaged_parts, damaged_arrays, damaged_arrays, doubled_keys))(data, rng)
    said("compiling")
    try:
        predictor = saving.from_bytes(data, "load", recompile=True)
    except (ModelFormatError, BuildError) as error:
        assert not is_whole, str(error)
        return "refused"
    if predictor.forest.encoder is not None:
        return "equal"  # the rows that users pass are others than those that it makes
    rows = hard_rows(predictor.forest, 20)
    sums = predictor.forest.predict_reference(rows)
    np.testing.assert_array_equal(predictor.predict_margin(rows).reshape(sums.shape), sums)
    return "equal"


def _checks() -> dict[str, Callable[..., str]]:
    found: dict[str, Callable[..., str]] = {"predictors compiled anew": check_recompiled}
    for name, check, ways in (
        ("record", check_records, {"bytes": damaged_bytes, "values": damaged_records}),
        ("machine", check_machine, {"bytes": damaged_bytes, "values": damaged_json}),
        ("cache", check_entry, {"bytes": damaged_bytes, "values": damaged_parts}),
    ):
        for word, damage in ways.items():

            def of_kind(rng: Any, said: Phase, check: Any = check, damage: Any = damage) -> str:
                return check(damage, rng, said)

            found[f"{name} {word}"] = of_kind
    return found


CHECKS = _checks()


def prepare() -> None:
    """Make all that is sound."""
    sound_records()
    entry()
    shipped_machines()
