"""What is read of a model is what XGBoost reads, from every format and in every thread."""

import json
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb

import treelite_models
from models import COMMON, DART_BY_KIND, MODELS, XGBOOST, data, margins, train
from tvm_forest.errors import ForestError, InputError, ModelFormatError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load
from tvm_forest.frontends.xgboost import _build, header, plain_json, plain_ubjson, ubjson
from tvm_forest.frontends.xgboost.document import Field, once_rounded
from tvm_forest.predictor.inputs import to_rows
from xgboost_models import KINDS


def document_of(booster):
    return json.loads(booster.save_raw("json"))


def written(document):
    return json.dumps(document).encode()


def gb(document):
    booster = document["learner"]["gradient_booster"]
    return booster.get("gbtree", booster)["model"]


def bits(numbers):
    return np.asarray(numbers, np.float32).ravel().view(np.uint32)


# -- formats --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *KINDS])
def test_all_formats_of_a_model_are_the_same_forest(name):
    model = (MODELS | KINDS)[name]()
    booster = model if isinstance(model, xgb.Booster) else model.get_booster()
    expected = load(booster).signature
    for form in ("json", "ubj"):
        content = booster.save_raw(form)
        assert load(content).signature == load(bytes(content)).signature == expected


PLAIN = {"json": plain_json, "ubj": plain_ubjson}


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("name", ["regression", "softprob", "dart", "categories_in_sets"])
def test_what_xgboost_writes_is_read_all_trees_at_once(name, form):
    content = (MODELS | KINDS)[name]().save_raw(form)  # a bytearray, which cannot be hashed
    assert PLAIN[form].loads(content) is not None and PLAIN[form].loads(bytes(content)) is not None


def read_with_care(content, form):
    document = header._read_json(content) if form == "json" else ubjson.loads(content)
    return forest_or_error(document)


def forest_or_error(document):
    try:
        found = header._read_document(Field(document, "document"), 1)
        return _build(found, found.n_trees, ("none", None)).identity
    except ForestError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", PLAIN)
def test_damaged_trees_that_are_read_at_once_are_what_a_careful_reader_sees(form, seed):
    rng, content = random.Random(seed), bytes(MODELS["pruned"]().save_raw(form))
    begin, seen = content.index(b"trees"), 0
    while seen < 20:
        changed, at = bytearray(content), rng.randrange(begin, len(content))
        changed[at : at + rng.randrange(3)] = rng.choice(
            [b"", b"7", b"]", b"-", b"1.5", b'"', b"["]
        )
        document = PLAIN[form].loads(bytes(changed))
        if document is not None:
            seen += 1
            assert forest_or_error(document) == read_with_care(bytes(changed), form)


ODD = {
    "a space": (b'"left_children":[', b'"left_children": ['),
    "a number of too many digits": (
        b'"split_conditions":[',
        b'"split_conditions":[36893488147419103232,',
    ),
    "NaN": (b'"sum_hessian":[', b'"sum_hessian":[NaN,'),
    "an escape": (b'"left_children"', b'"left\\u005fchildren"'),
    "no comma between trees": (b'}},{"base_weights"', b'}}{"base_weights"'),
    "a comma behind them": (b'"}}]', b'"}},]'),
    "trees twice": (b'"trees":[', b'"trees":[],"trees":['),
    "a list in a list": (b'"split_indices":[', b'"split_indices":[[],'),
    "a text": (b'"parents":[', b'"parents":["]",'),
    "a leading zero": (b'"id":0', b'"id":00'),
    "a member that one tree has": (b',"id":1,', b',"id":1,"leaf_child_counts":[],'),
    "a member that one tree lacks": (b'"categories_sizes":[],', b""),
}


@pytest.mark.parametrize("odd", ODD)
def test_json_that_is_written_in_another_way_is_read_with_care(odd):
    content = bytes(MODELS["regression"]().save_raw("json"))
    assert ODD[odd][0] in content
    assert plain_json.loads(content.replace(*ODD[odd], 1)) is None


def test_trees_are_read_at_once_though_their_numbers_have_several_sizes():
    booster = xgb.train(COMMON, xgb.DMatrix(*data()), 300)  # 'id' has one byte, then two
    content = bytes(booster.save_raw("ubj"))
    assert plain_ubjson.loads(content) is not None
    assert forest_or_error(plain_ubjson.loads(content)) == read_with_care(content, "ubj")


def test_a_length_that_leads_back_to_the_tree_before_is_followed_once():
    """Each round would search for the end of that tree, as often as trees are announced."""
    stumps = xgb.train(COMMON | {"max_depth": 1}, xgb.DMatrix(*data()), 2)  # of equal lengths
    content = bytes(stumps.save_raw("ubj"))
    trees, name = b"trees[#L", b"base_weights[$d#L"
    param = b"L" + bytes(7) + b"\x0atree_param{"
    first = content.index(param)
    second = content.index(param, first + 1)
    size = -(second - first + 20) % 4  # so that what leads back is a number of weights
    text = b"L" + bytes(7) + b"\x01zSL" + bytes(7) + bytes([size]) + b"x" * size
    place = content.index(name, first) + len(name)
    weights = int.from_bytes(content[place : place + 8], "big")
    back = (weights - (second - first + len(text)) // 4).to_bytes(8, "big", signed=True)
    count = content.index(trees) + len(trees)
    damaged = content[:count] + (1000).to_bytes(8, "big") + content[count + 8 : first + len(param)]
    damaged += text + content[first + len(param) : place] + back + content[place + 8 :]
    sought = []

    class Watched(bytes):
        def index(self, *args):
            sought.append(args)
            return super().index(*args)

    assert plain_ubjson.loads(Watched(damaged)) is None
    assert 0 < len(sought) < 10


KEY = b"L" + bytes(7) + b"\x0dleft_children["


@pytest.mark.parametrize("damaged", [b"M" + KEY[1:] + b"$l#", KEY + b"$l*", KEY + b"#l#"])
def test_a_tree_alone_is_no_pattern_of_its_own_damages(damaged):
    booster = xgb.train(COMMON, xgb.DMatrix(*data()), 1)
    content = bytes(booster.save_raw("ubj"))
    assert KEY + b"$l#" in content and plain_ubjson.loads(content) is not None
    assert plain_ubjson.loads(content.replace(KEY + b"$l#", damaged)) is None
    assert plain_ubjson.loads(content.replace(b"trees[#L", b"trees[#@")) is None


@pytest.mark.slow
def test_models_load_in_many_threads_at_once_and_printing_goes_on():
    found = [MODELS[name]() for name in ("regression", "softprob", "dart")]
    found += [bytes(booster.save_raw(form)) for booster in found for form in ("json", "ubj")]
    found += [lgb.train({"verbose": -1}, lgb.Dataset(*data()), 5)]
    found += [treelite_models.MODELS["drawn operator <"]()]
    expected = [load(model).signature for model in found] * 20
    streams = sys.stdout, sys.stderr
    with ThreadPoolExecutor(8) as pool:
        forests = pool.map(load, found * 20)
        seen = [(forest.signature, sys.stdout, sys.stderr) for forest in forests]
    assert [signature for signature, *_ in seen] == expected
    assert all(each[1:] == streams for each in seen)
    assert (sys.stdout, sys.stderr) == streams


# -- numbers --------------------------------------------------------------------------------------


def stump(texts):
    """JSON of trees that are a leaf each, with a number text for its value."""
    booster = xgb.train(COMMON | {"gamma": 1e9, "base_score": 0.0}, xgb.DMatrix(*data()), 1)
    document = document_of(booster)
    model = gb(document)
    tree = json.dumps(model["trees"][0])
    model |= {"tree_info": [0] * len(texts), "iteration_indptr": list(range(len(texts) + 1))}
    model["gbtree_model_param"]["num_trees"] = str(len(texts))
    trees = (re.sub(r'("split_conditions": )\[[^]]*\]', rf"\1[{text}]", tree) for text in (*texts,))
    numbered = ",".join(
        each.replace('"id": 0', f'"id": {place}') for place, each in enumerate(trees)
    )
    model["trees"] = "here"
    return json.dumps(document).replace('"here"', f"[{numbered}]").encode()


def number_texts(n):
    """Texts of all lengths, most of them close to the middle between two float32."""
    rng = random.Random(4)
    for _ in range(n):
        whole = Fraction(2 * rng.randrange(2**24) + 1) * Fraction(2) ** rng.randrange(-150, 104)
        whole *= 1 + Fraction(rng.choice([-1, 0, 1]), 10 ** rng.choice([8, 15, 16, 17, 20, 40]))
        power = len(str(whole.numerator)) - len(str(whole.denominator))
        digits = str(int(whole / Fraction(10) ** power * 10 ** rng.choice([8, 12, 16, 17, 25, 60])))
        yield f"{rng.choice(['', '-'])}{digits[0]}.{digits[1:] or 0}e{power}"


ODD_TEXTS = ["NaN", "Infinity", "-Infinity", "1e400", "-1E400", "1e-400", "7.1e-46", "-0.0"]
ODD_TEXTS += ["3.4028235677973366e38", "3.4028235677973367e38", "1.17549428e-38", "16777217.0"]
ODD_TEXTS += ["7e-46", "1.00000005960464477540", "1.00000005960464477539", "0.1e-99999999999"]


def test_numbers_of_json_are_rounded_as_xgboost_does():
    texts = [*ODD_TEXTS, *number_texts(3000)]
    content = stump(texts)
    theirs = load(xgb.Booster(model_file=bytearray(content))).leaf_value
    assert np.array_equal(bits(load(content).leaf_value), bits(theirs))
    with np.errstate(over="ignore"):
        by_double = np.array(list(map(float, texts))).astype(np.float32)
    assert np.count_nonzero(bits(by_double) != bits(theirs)) > 100


def test_a_threshold_of_many_digits_sends_a_row_the_way_of_xgboost(tmp_path):
    rows = np.array([[1], [np.nextafter(np.float32(1), np.float32(2))]], np.float32)
    options = COMMON | {"max_depth": 1, "min_child_weight": 0}
    document = document_of(xgb.train(options, xgb.DMatrix(rows, [0, 1]), 1))
    text = json.dumps(document)
    split = str(gb(document)["trees"][0]["split_conditions"][0])
    for digits in ("1.00000005960464477540", "1.00000005960464477538"):
        content = text.replace(f'"split_conditions": [{split},', f'"split_conditions": [{digits},')
        expected = margins(xgb.Booster(model_file=bytearray(content.encode())), rows)
        assert content != text
        assert np.array_equal(load(content.encode()).predict_reference(rows), expected)


def test_a_base_score_of_many_digits_is_rounded_once():
    document = document_of(train("reg:squarederror", data()[1], rounds=0, base_score=1))
    for digits in ("1.00000005960464477540", "16777217", "9007199791611905"):
        document["learner"]["learner_model_param"]["base_score"] = digits
        expected = margins(xgb.Booster(model_file=bytearray(written(document))), data()[0][:1])
        assert bits(load(written(document)).base_score) == bits(expected)


@pytest.mark.parametrize("text", ["0.5", "1e-45", "0", "1.5", "1e99999"])
def test_a_number_that_needs_no_care_is_left_as_it_is(text):
    assert once_rounded(text) == float(text)


# -- base scores ----------------------------------------------------------------------------------


NEVER_ESTIMATED = ["binary:logistic", "reg:logistic", "count:poisson", "reg:gamma"]


@pytest.mark.parametrize("objective", NEVER_ESTIMATED)
def test_a_base_score_that_was_never_estimated_is_the_margin(objective):
    booster = train(objective, data()[1] > 3, rounds=0)
    rows = data()[0][:3]
    expected = margins(booster, rows)
    assert expected[0, 0] == 0.5
    for model in (booster, booster.save_raw("json"), booster.save_raw("ubj")):
        assert np.array_equal(load(model).predict_reference(rows), expected)


# -- weighted trees -------------------------------------------------------------------------------


def with_negative_zeros(booster):
    """The same trees, with -0.0 for base score and many leaves."""
    document = document_of(booster)
    document["learner"]["learner_model_param"]["base_score"] = "[-0E0]"
    for tree in gb(document)["trees"]:
        leaves = [node for node, left in enumerate(tree["left_children"]) if left == -1]
        for node in leaves[::2]:
            tree["split_conditions"][node] = -0.0
    return xgb.Booster({"nthread": 1}, model_file=bytearray(written(document)))


@pytest.mark.parametrize("booster", ["dart", "gbtree"])
def test_signed_zeros_of_weighted_trees_are_those_of_xgboost(booster):
    options = {"booster": booster} | ({"rate_drop": 0.5} if booster == "dart" else {})
    for rounds in (1, 3):
        trained = train("reg:squarederror", data()[1], rounds, max_depth=2, **options)
        model = with_negative_zeros(trained)
        forest = load(model)
        rows = np.nan_to_num(hard_rows(forest, 300), nan=np.nan)
        expected = model.predict(xgb.DMatrix(rows), output_margin=True)
        zeros = expected[expected == 0]
        negative = booster == "gbtree" or not DART_BY_KIND
        assert zeros.size and np.signbit(zeros).all() == negative
        assert np.array_equal(bits(forest.predict_reference(rows)), bits(expected))


def test_signed_zeros_of_a_dart_estimator_are_those_of_xgboost(tmp_path):
    options = {"booster": "dart", "rate_drop": 0.5, "max_depth": 2, "n_estimators": 3, "n_jobs": 1}
    model = xgb.XGBRegressor(**options).fit(*data())
    with_negative_zeros(model.get_booster()).save_model(tmp_path / "model.json")
    model.load_model(tmp_path / "model.json")
    forest = load(model)
    rows = np.nan_to_num(hard_rows(forest, 300), nan=np.nan)
    expected = model.predict(rows, output_margin=True)
    assert np.count_nonzero(expected == 0)
    assert np.array_equal(bits(forest.predict_reference(rows)), bits(expected))


@pytest.mark.skipif(not DART_BY_KIND, reason="moves weights from where XGBoost 3.2 has them")
@pytest.mark.parametrize("version", ["3.3.0", "3.4.1"])
def test_weights_of_trees_are_found_where_each_version_puts_them(version):
    document = document_of(MODELS["dart"]())
    booster = document["learner"]["gradient_booster"]
    document["version"] = [int(part) for part in version.split(".")]
    legacy = load(written(document))
    weights = booster.pop("weight_drop")
    model = booster.pop("gbtree")["model"]
    booster.update(name="gbtree", model=model)
    (booster if version == "3.3.0" else model)["weight_drop"] = weights
    moved = load(written(document))
    assert moved.signature == legacy.signature
    weights.pop()
    with pytest.raises(ModelFormatError, match="'weight_drop': expected 12 numbers"):
        load(written(document))


# -- names of categories --------------------------------------------------------------------------


def named(names):
    """Train on a column of categories, each name with a target of its own."""
    column = pd.Series(pd.Categorical(names * 30, categories=names))
    target = np.tile(np.arange(len(names)), 30)
    options = COMMON | {"min_child_weight": 0}
    frame = pd.DataFrame({"town": column})
    return xgb.train(options, xgb.DMatrix(frame, target, enable_categorical=True), 3), frame


@pytest.mark.skipif(XGBOOST >= (3, 4), reason="XGBoost 3.4 and newer cuts no names")
@pytest.mark.parametrize("names", [["éx", "a", "x"], ["Köln", "Aachen"], ["ä", "ö", "ü"]])
def test_names_beyond_ascii_which_xgboost_cuts_are_refused_and_codes_predict(names):
    booster, frame = named(names)
    forest = load(booster)
    assert forest.category_names == {}
    with pytest.raises(InputError, match="column 'town' holds categories, but the model stores no"):
        to_rows(frame, forest)
    codes = np.arange(len(names), dtype=np.float32)[:, None]
    assert np.array_equal(forest.predict_reference(codes), margins(booster, codes))


def test_names_in_ascii_number_the_rows_of_a_frame():
    booster, frame = named(["b", "c", "a"])
    forest = load(booster)
    rows = to_rows(frame[::-1].astype(pd.CategoricalDtype(["a", "b", "c"])), forest)
    assert rows[:3, 0].tolist() == [2, 1, 0]


def test_names_beyond_ascii_are_taken_where_xgboost_stores_them_whole():
    document = document_of(named(["Köln", "Aachen"])[0])
    text = "KölnAachen".encode()
    signed = np.frombuffer(text, np.int8).tolist()
    gb(document)["cats"]["enc"] = [{"offsets": [0, 5, 11], "values": signed}]
    document["version"] = [3, 2, 0]
    assert load(written(document)).category_names == {}
    document["version"] = [3, 4, 0]
    assert load(written(document)).category_names == {0: ("Köln", "Aachen")}


# -- messages -------------------------------------------------------------------------------------


def dumped():
    return lgb.train({"verbose": -1}, lgb.Dataset(*data()), 50)


TEXTS = {
    "a text cut off": (
        lambda: MODELS["regression"]().save_raw("json").decode()[:-9],
        "xgboost text: field 'document': not valid JSON",
    ),
    "a text of lines": (lambda: "x\n" * 200_000, "'text' is no model file"),
    "a long name": (lambda: "x" * 400_000, "cannot read 'xxx"),
    "a name that no file can have": (lambda: "a\0b", "cannot read 'a"),
    "bytes": (lambda: b"x" * 400_000, "'bytes' is no model file"),
    "a long field": (
        lambda: stump(["1.0"]).replace(b'"cats"', b'"' + b"y" * 400_000 + b'"'),
        "has this field of a later version",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_whatever_is_passed_the_message_is_short(case):
    make, message = TEXTS[case]
    with pytest.raises((ModelFormatError, UnsupportedModel), match=message) as error:
        load(make())
    assert len(str(error.value)) <= 1000 and "\n" not in str(error.value)


def test_no_message_is_longer_than_a_thousand_characters():
    text = f"begin {'x' * 5000} end"
    for kind in (ForestError, ModelFormatError, UnsupportedModel, InputError):
        assert len(str(kind(text))) <= 1000
        assert str(kind(text)).startswith("begin ") and str(kind(text)).endswith(" end")
    assert str(InputError("short")) == "short"


def test_dumps_of_other_libraries_are_called_what_they_are():
    with pytest.raises(UnsupportedModel, match="a dump of LightGBM, .*Booster.save_model"):
        load(json.dumps(dumped().dump_model()).encode())
    with pytest.raises(UnsupportedModel, match="catboost bytes: field 'trees': there are none"):
        load(b'{"features_info": {}, "model_info": {}, "oblivious_trees": []}')
