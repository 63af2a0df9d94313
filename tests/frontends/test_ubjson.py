"""The reader of Universal Binary JSON."""

import json
import struct

import numpy as np
import pytest

from models import MODELS
from tvm_forest.frontends.xgboost import ubjson


def length(count):
    return b"L" + struct.pack(">q", count)


KEY = length(1) + b"a"
VALUES = {
    b"Z": None,
    b"T": True,
    b"F": False,
    b"i\xff": -1,
    b"U\xff": 255,
    b"Ca": 97,
    b"I\xff\xfe": -2,
    b"l\xff\xff\xff\xfd": -3,
    b"L" + struct.pack(">q", 2**40): 2**40,
    b"d" + struct.pack(">f", 0.25): 0.25,
    b"D" + struct.pack(">d", 0.1): 0.1,
    b"S" + length(3) + b"\xc3\xa9!": "é!",
    b"[i\x01i\x02]": [1, 2],
    b"[#" + length(2) + b"i\x01T": [1, True],
    b"[]": [],
    b"{" + KEY + b"i\x07}": {"a": 7},
    b"{" + KEY + b"i\x07" + KEY + b"i\x08}": {"a": 7},
    b"{" + KEY + b"[{" + KEY + b"Z}]}": {"a": [{"a": None}]},
}


@pytest.mark.parametrize("data", VALUES)
def test_every_kind_of_value_is_read(data):
    value = ubjson.loads(data)
    assert value == VALUES[data]
    assert type(value) is type(VALUES[data])


@pytest.mark.parametrize("marker", "iUIlLdD")
def test_an_array_of_a_type_is_read_as_one(marker):
    code = dict(zip("iUIlLdD", "bBhiqfd", strict=True))[marker]
    data = b"[$" + marker.encode() + b"#" + length(3) + struct.pack(f">3{code}", 1, 2, 3)
    found = ubjson.loads(b"{" + KEY + data + b"}")["a"]
    assert isinstance(found, np.ndarray) and found.dtype == np.dtype(f">{code}")
    assert found.tolist() == [1, 2, 3]


DAMAGES = {
    b"": "ends within a value at byte 0",
    b"D123": "ends within a value at byte 4",
    b"[T": "ends within a value at byte 2",
    b"?": r"unknown type marker b'\?' at byte 0",
    b"SU\x01a" + bytes(7): "no length at byte 1",
    b"S" + length(5) + b"abc": "ends before the 5 entries announced at byte 10",
    b"S" + length(-1): "ends before the -1 entries",
    b"S" + length(1) + b"\xff": "text before byte 11 is not UTF-8",
    b"[$iT]" + bytes(9): "no length at byte 3",
    b"[$d#" + length(2) + bytes(7): "ends within the 2 numbers that begin at byte 13",
    b"[$T#" + length(0): "array of no known type at byte 1",
    b"[" * 200: "nested more than 100 deep",
    b"TT": "1 bytes too many from byte 1",
}


@pytest.mark.parametrize("data", DAMAGES)
def test_damaged_data_is_refused_by_byte(data):
    with pytest.raises(ValueError, match=DAMAGES[data]):
        ubjson.loads(data)


@pytest.mark.parametrize("name", ["regression", "softprob", "dart", "pruned"])
def test_a_model_reads_as_in_json(name):
    booster = MODELS[name]()
    document = json.loads(booster.save_raw("json"))
    read = ubjson.loads(bytes(booster.save_raw("ubj")))
    assert read["version"] == document["version"]
    assert read["learner"]["objective"] == document["learner"]["objective"]
    assert read["learner"].keys() == document["learner"].keys()
    booster = read["learner"]["gradient_booster"], document["learner"]["gradient_booster"]
    ours, theirs = (b.get("gbtree", b)["model"]["trees"][0] for b in booster)
    assert ours["left_children"].tolist() == theirs["left_children"]
    assert ours["base_weights"] == pytest.approx(theirs["base_weights"], rel=1e-6)
