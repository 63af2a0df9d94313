"""The reader of Universal Binary JSON."""

import json
import struct

import pytest

from models import MODELS
from tvm_forest.frontends import ubjson

VALUES = {
    b"Z": None,
    b"T": True,
    b"F": False,
    b"i\xff": -1,
    b"U\xff": 255,
    b"I\xff\xfe": -2,
    b"l\xff\xff\xff\xfd": -3,
    b"L" + struct.pack(">q", 2**40): 2**40,
    b"d" + struct.pack(">f", 0.25): 0.25,
    b"D" + struct.pack(">d", 0.1): 0.1,
    b"Ca": "a",
    b"Hi\x031.5": "1.5",
    b"SU\x03\xc3\xa9!": "é!",
    b"[i\x01i\x02]": [1, 2],
    b"[#i\x02i\x01T": [1, True],
    b"[$i#i\x03\x01\x02\x03": [1, 2, 3],
    b"[$S#i\x02i\x01ai\x01b": ["a", "b"],
    b"[]": [],
    b"{i\x01ai\x07N}": {"a": 7},
    b"{$i#i\x02i\x01a\x01i\x01b\x02": {"a": 1, "b": 2},
    b"{i\x01a[{i\x01bZ}]}": {"a": [{"b": None}]},
    b"NT": True,
    b"TN": True,
}


@pytest.mark.parametrize("data", VALUES)
def test_every_kind_of_value_is_read(data):
    value = ubjson.loads(data)
    assert value == VALUES[data]
    assert type(value) is type(VALUES[data])


DAMAGES = {
    b"": "ends within a value at byte 0",
    b"D123": "ends within a value at byte 4",
    b"[T": "ends within a value at byte 2",
    b"?": r"unknown type marker b'\?' at byte 0",
    b"Sd": "no length at byte 1",
    b"SU\x05abc": "ends before the 5 entries announced at byte 3",
    b"Si\xff": "ends before the -1 entries",
    b"SU\x01\xff": "text before byte 4 is not UTF-8",
    b"[$iT]": "typed container without a count at byte 3",
    b"[$d#i\x02" + bytes(7): "ends within the 2 numbers that begin at byte 6",
    b"[$T#i\x00": "container of constants",
    b"[" * 200: "nested more than 100 deep",
    b"TT": "1 bytes too many from byte 1",
}


@pytest.mark.parametrize("data", DAMAGES)
def test_damaged_data_is_refused_by_byte(data):
    with pytest.raises(ValueError, match=DAMAGES[data]):
        ubjson.loads(data)


def test_arrays_under_skipped_keys_are_stepped_over():
    data = b"{i\x01a[$i#i\x03\x01\x02\x03i\x01b[$i#i\x01\x04}"
    assert ubjson.loads(data, frozenset("a")) == {"a": None, "b": [4]}


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
    assert ours["left_children"] == theirs["left_children"]
    assert ours["base_weights"] == pytest.approx(theirs["base_weights"], rel=1e-6)
