"""ONNX models in Relax modules give what onnxruntime gives on one thread."""

import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_forest.relax
from onnx_models import FEATURES, classifier, drawn_trees, ensemble, regressor
from tvm_forest.errors import ModelFormatError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load

F4, F8, I4, I8 = np.float32, np.float64, np.int32, np.int64
NAN = float("nan")
ROWS = [[1, -2, 0], [0, 0, 0], [-3, 4, -0.0], [-1, -2, -3], [0.1, 0.2, 0.3], [3e38, -3e38, 1]]
HARD = [*ROWS, [NAN, 1, 2], [NAN, NAN, NAN], [1e30, 1e30, 1e-45], [np.inf, 1, -np.inf]]
CODES = [[1.0, 2.9, -0.5], [7, NAN, 1e30], [np.inf, -np.inf, 2]]
DTYPES = (F4, F8, I4, I8)
SCORE_ERROR = 2.0**-21
"""Bound for sums of three products, and what exponentials make of them, near 1."""


def tensor_type(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def one_node(kind, inputs, outputs=("float32",), version=3, domain="ai.onnx.ml", **attributes):
    """A model of one node, whose inputs have any number of rows."""
    names = [f"x{i}" for i in range(len(inputs))]
    results = [f"y{i}" for i in range(len(outputs))]
    node = helper.make_node(kind, names, results, name="it", domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(
            name, tensor_type(x.dtype), [f"n{len(x)}" if x.ndim > 1 else len(x), *x.shape[1:]]
        )
        for name, x in zip(names, inputs, strict=True)
    ]
    made = [
        helper.make_tensor_value_info(
            name, TensorProto.STRING if dtype == "text" else tensor_type(dtype), None
        )
        for name, dtype in zip(results, outputs, strict=True)
    ]
    return wrapped([node], given, made, version)


def wrapped(nodes, inputs, outputs, version=3, constants=()):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    opsets = [helper.make_opsetid("ai.onnx.ml", version), helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def from_onnx(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TVM's, of dimensions without a number
        return tvm_forest.relax.from_onnx(model, **options)


def compiled(mod, target="llvm"):
    machine = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())

    def run(*inputs):
        found = machine["main"](*[tvm.runtime.tensor(np.ascontiguousarray(x)) for x in inputs])
        return [x.numpy() for x in ([found] if hasattr(found, "numpy") else found)]

    return run


def expected(model, *inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    data, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(data, options, providers=providers)
    names = [entry.name for entry in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def plain(mod, model, results):
    """Results of a module with texts and maps in the place of places and columns."""
    labels = tvm_forest.relax.labels_of(mod)
    for output, result in zip(model.graph.output, results, strict=True):
        table = labels.get(output.name)
        if table is not None and result.dtype == np.int64:
            result = np.array(table)[result]
        yield result, table


def check_equal(model, *inputs, error=0.0, target="llvm"):
    mod = from_onnx(model)
    found = compiled(mod, target)(*inputs)
    for (result, _), wanted in zip(plain(mod, model, found), expected(model, *inputs), strict=True):
        assert result.shape == wanted.shape
        if wanted.dtype == object:
            assert np.array_equal(result, wanted.astype(str))
            continue
        assert result.dtype == wanted.dtype
        assert np.array_equal(np.isnan(result), np.isnan(wanted))
        here = ~np.isnan(wanted)
        if error and wanted.dtype.kind == "f":
            near = np.isclose(result, wanted, rtol=error, atol=error, equal_nan=True)
            assert near.all(), np.abs(result - wanted).max()
        else:
            assert result[here].tobytes() == wanted[here].tobytes()


def tensor(values, dtype):
    return numpy_helper.from_array(np.array(values, dtype))


def rows_of(dtype, values=HARD):
    if np.dtype(dtype).kind == "f":
        return np.array(values, dtype)
    return np.array([[round(x) for x in row] for row in ROWS[:4]], dtype)


def columns():
    """Nodes on columns, with the inputs that they are asked for."""
    for dtype in DTYPES:
        x, name = rows_of(dtype), np.dtype(dtype).name
        three = {"scale": [2.0, 3.0, 0.1], "offset": [0.1, 0.2, 0.3]}
        yield f"scaler {name}", "Scaler", [x], three
        yield f"scaler of one {name}", "Scaler", [x], {"scale": [2.1], "offset": [0.7]}
        for norm in ("MAX", "L1", "L2"):
            yield f"normalizer {norm} {name}", "Normalizer", [x], {"norm": norm}
    x = rows_of(F4)
    yield "scaler of a vector", "Scaler", [x[0]], {"scale": [2.0, 3, 0.1], "offset": [0.1, 0, 9]}
    yield "normalizer of a vector", "Normalizer", [x[0]], {"norm": "L2"}
    yield "normalizer by default", "Normalizer", [x], {}
    fill = {"imputed_value_floats": [9.0, 8.0, 7.0]}
    yield "imputer of zero", "Imputer", [x], fill
    yield "imputer of NaN", "Imputer", [x], {**fill, "replaced_value_float": NAN}
    yield "imputer of one", "Imputer", [x], {**fill, "imputed_value_floats": [5.0]}
    whole = {"imputed_value_int64s": [9, 8, 2**40], "replaced_value_int64": -2}
    yield "imputer of integers", "Imputer", [rows_of(I8)], whole
    x = rows_of(F4, ROWS)
    yield "binarizer", "Binarizer", [x], {"threshold": 0.1}
    yield "binarizer by default", "Binarizer", [x.reshape(3, 2, 3)], {}
    y = rows_of(F4)
    yield "vectorizer", "FeatureVectorizer", [y, y[:, :2]], {"inputdimensions": [3, 2]}
    yield "vectorizer cuts", "FeatureVectorizer", [y, y[:, :2]], {"inputdimensions": [2, 5]}
    yield "vectorizer casts", "FeatureVectorizer", [rows_of(F8)], {"inputdimensions": [3]}
    yield "vectorizer of integers", "FeatureVectorizer", [rows_of(I8)], {"inputdimensions": [4]}
    yield "vectorizer of a vector", "FeatureVectorizer", [y[0]], {"inputdimensions": [3]}
    extract = "ArrayFeatureExtractor"
    yield "extractor", extract, [y, np.array([2, 0])], {}
    yield "extractor of a vector", extract, [y[0], np.array([[2], [0], [2]])], {}
    yield "extractor of a cube", extract, [x.reshape(3, 2, 3), np.array([1, 1])], {}
    yield "extractor of integers", extract, [rows_of(I8), np.array([1])], {}


COLUMNS = {name: case for name, *case in columns()}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.cases(5)
def test_a_node_on_columns_has_the_bits_of_onnxruntime(name):
    kind, inputs, attributes = COLUMNS[name]
    keeps = kind in ("Imputer", "ArrayFeatureExtractor")
    model = one_node(kind, inputs, (inputs[0].dtype if keeps else "float32",), **attributes)
    check_equal(model, *inputs)


def encoders():
    codes = {
        d: np.nan_to_num(CODES, posinf=5, neginf=0).clip(-9, 9).astype(d) for d in (I4, I8)
    } | {d: np.array(CODES, d) for d in (F4, F8)}
    for dtype in (F4, F8, I8):
        known = {"cats_int64s": [1, 2, 0, 2]}
        yield f"one hot {dtype.__name__}", "OneHotEncoder", codes[dtype], "float32", 3, known
    strict = {"cats_int64s": [1, 0, 2, -3], "zeros": 0}
    yield "one hot, all known", "OneHotEncoder", np.array([[1, 0], [2, -3]]), "float32", 3, strict
    edge = {"cats_int64s": [-(2**63), 2]}
    yield "one hot of what fits not", "OneHotEncoder", codes[F4], "float32", 3, edge
    keys = np.array([[1, 2, -0.0, 0.0, 5, 1e30, NAN]])
    both = {"default_int64": 7, "default_float": 8.0, "default_string": "q"}
    for version in (2, 4):
        for dtype, field, of in ((I8, "int64s", [2, 0]), (F4, "floats", [2.0, 0.0])):
            x = np.nan_to_num(keys, posinf=0).clip(-9, 9).astype(dtype) if dtype is I8 else keys
            for kind, made, values in (
                ("int64s", "int64", [10, 20]),
                ("floats", "float32", [0.1, -0.0]),
                ("strings", "text", ["b", "a"]),
            ):
                for more in ({}, both):
                    lists = {f"keys_{field}": of, f"values_{kind}": values, **more}
                    name = f"labels {version} {field} {kind} {len(more)}"
                    yield name, "LabelEncoder", x.astype(dtype), made, version, lists
    for version in (2, 4):
        lists = {"keys_floats": [1.0, NAN, 0.0], "values_floats": [5.0, 6.0, 7.0]}
        yield f"NaN in {version}", "LabelEncoder", keys.astype(F4), "float32", version, lists
    for key, value in ((I8, F4), (I8, I8), (I8, F8), (F4, F4), (F4, I8), (F8, I8), (F8, F8)):
        x = np.nan_to_num(keys).clip(-9, 9).astype(key) if key is I8 else keys.astype(key)
        tensors = {
            "keys_tensor": tensor([1, 2, 3 if key is I8 else NAN], key),
            "values_tensor": tensor([10, 20, 30], value),
        }
        name = f"{key.__name__} to {value.__name__}"
        yield f"tensors {name}", "LabelEncoder", x, value, 4, tensors
        more = {**tensors, "default_tensor": tensor([7], value)}
        yield f"tensors with a default {name}", "LabelEncoder", x, value, 4, more
    classes = {"classes_strings": ["b", "a"]}
    yield "classes of version 1", "LabelEncoder", np.array([0, 1, 5]), "text", 1, classes


ENCODERS = {name: case for name, *case in encoders()}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.cases(5)
def test_an_encoder_has_the_bits_of_onnxruntime(name):
    kind, x, made, version, attributes = ENCODERS[name]
    check_equal(one_node(kind, [x], (made,), version, **attributes), x)


def test_of_equal_keys_the_first_counts_and_of_equal_categories_the_last():
    x = np.array([[3.0, 1.0]], F4)
    lists = {"keys_floats": [3.0, 1.0, 3.0], "values_floats": [1.0, 2.0, 3.0]}
    check_equal(one_node("LabelEncoder", [x], version=4, **lists), x)
    check_equal(one_node("OneHotEncoder", [x], cats_int64s=[3, 1, 3]), x)


COEFFICIENTS = [0.5, 0.25, -1, 0.3, 0.2, 0.1, 1, -1, 0.7]


@pytest.mark.parametrize("link", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", ["LinearClassifier", "LinearRegressor"])
@pytest.mark.cases(3)
def test_a_linear_model_is_near_onnxruntime(kind, count, link):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(F4)
    x[:2] = 0
    more = {"coefficients": COEFFICIENTS[: 3 * count], "intercepts": [0.1, 0.0, 0.3][:count]}
    outputs = ("float32",)
    if kind == "LinearClassifier":
        more |= {"classlabels_ints": [7, 5, 6][: max(2, count)], "multi_class": 1}
        outputs = ("int64", "float32")
    else:
        more["targets"] = count
    model = one_node(kind, [x], outputs, post_transform=link, **more)
    refused = count == 1 and link not in ("NONE", "LOGISTIC")[: len(outputs)]
    if refused:
        with pytest.raises(UnsupportedModel, match="'post_transform'"):
            from_onnx(model)
    else:
        check_equal(model, x, error=SCORE_ERROR)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.cases(1)
def test_a_linear_classifier_of_texts_takes_all_numbers(dtype):
    x = rows_of(dtype, ROWS[:5])
    more = {"coefficients": COEFFICIENTS, "intercepts": [0.1, 0.2, 0.3]}
    labels = {"classlabels_strings": ["b", "a", "äh"]}
    model = one_node("LinearClassifier", [x], ("text", "float32"), **more, **labels)
    check_equal(model, x, error=2.0**-20)


def test_a_first_score_that_is_nan_is_the_largest():
    x = np.array([[NAN, 1, 1], [np.inf, -np.inf, 1], [1, 2, 3]], F4)
    more = {"coefficients": COEFFICIENTS, "intercepts": [0.1, 0.2, 0.3]}
    model = one_node(
        "LinearClassifier", [x], ("int64", "float32"), classlabels_ints=[3, 4, 5], **more
    )
    check_equal(model, x, error=SCORE_ERROR)


# -- forests --------------------------------------------------------------------------------------


def forests():
    for dtype in ("float32", "float64"):
        yield (
            f"targets {dtype}",
            regressor(
                drawn_trees(3, 2, ["LEQ", "LT"], 3, 3, votes="all"), dtype, 3, base=[1, -2, 0.1]
            ),
        )
        yield f"two classes {dtype}", classifier(drawn_trees(5, 1, ["LEQ"], low=0.0), [5, 7], dtype)
        yield f"raw {dtype}", classifier(drawn_trees(3, 9, ["LEQ"]), [5, 7], dtype, base=[0.25])
        link = {"post_transform": "LOGISTIC"}
        yield f"logistic {dtype}", classifier(drawn_trees(3, 9, ["LT"]), ["b", "a"], dtype, **link)
        trees = drawn_trees(3, 4, ["LEQ"], 3, votes="all")
        yield f"three classes {dtype}", classifier(trees, ["b", "a", "äh"], dtype)
        yield f"ensemble {dtype}", ensemble(drawn_trees(3, 4, ["LEQ", "LT"]), dtype)


FORESTS = dict(forests())


@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.cases(2)
def test_a_tree_operator_has_the_bits_of_onnxruntime(name):
    model = FORESTS[name]
    rows = hard_rows(load(model), 65)
    if "ensemble" in name:
        rows = np.where(np.isnan(rows), rows.dtype.type(1), rows)
    check_equal(model, rows, error=SCORE_ERROR if "logistic" in name else 0.0)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.cases(1)
def test_trees_take_integers_as_float32(dtype):
    model = classifier(drawn_trees(3, 1, ["LEQ"], 3, votes="all", depth=3), [4, -1, 9])
    model.graph.input[0].type.tensor_type.elem_type = tensor_type(dtype)
    rows = np.random.default_rng(0).integers(-3, 4, (50, FEATURES)).astype(dtype)
    rows[0] = 16777217
    check_equal(model, rows)


def test_zip_map_gives_the_classes_of_its_columns():
    zipped = helper.make_node(
        "ZipMap", ["Y"], ["Z"], domain="ai.onnx.ml", classlabels_strings=["b", "a"]
    )
    trees = drawn_trees(5, 1, ["LEQ"], depth=1, low=0.0)
    model = classifier(trees, ["b", "a"], around=[zipped])
    model.graph.output[1].name = "Z"
    mod = from_onnx(model)
    assert tvm_forest.relax.labels_of(mod) == {"L": ["b", "a"], "Z": ["b", "a"]}
    rows = hard_rows(load(classifier(trees, ["b", "a"])), 33)
    label, scores = compiled(mod)(rows)
    model.graph.output[1].CopyFrom(helper.make_empty_tensor_value_info("Z"))
    labels, maps = expected(model, rows)
    assert np.array_equal(np.array(["b", "a"])[label], labels)
    assert np.array_equal(scores, np.array([[row["b"], row["a"]] for row in maps], F4))


def test_texts_of_a_constant_reach_the_output_by_their_places():
    classes = helper.make_tensor("classes", TensorProto.STRING, [3], [b"one", b"two", b"\xc3\xa4h"])
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [-1])
    nodes = [
        helper.make_node("ArgMax", ["x"], ["at"], axis=1, keepdims=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "at"], ["row"], domain="ai.onnx.ml"),
        helper.make_node("Reshape", ["row", "shape"], ["label"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])
    label = helper.make_tensor_value_info("label", TensorProto.STRING, [None])
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(F4)
    check_equal(wrapped(nodes, [x], [label], constants=[classes, shape]), rows)


def test_real_numbers_that_are_no_integers_are_cast_as_on_x86():
    x = np.array([[NAN, np.inf, -np.inf, 1e30, -1.9, 2.5, 3e9]], F4)
    for made in ("int64", "int32"):
        to = tensor_type(made)
        check_equal(one_node("Cast", [x], (made,), domain="", to=to), x)


# -- what rows are refused, in the module ---------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "good", "bad", "attributes"),
    [
        ("Binarizer", [[1, 2]], [[1, NAN]], {}),
        ("OneHotEncoder", [[1, 2]], [[1, 5]], {"cats_int64s": [1, 2], "zeros": 0}),
    ],
)
@pytest.mark.parametrize("pipeline", ["default", "zero"])
@pytest.mark.cases(2)
def test_rows_that_onnxruntime_refuses_are_refused_by_the_module(
    kind, good, bad, attributes, pipeline
):
    good, bad = np.array(good, F4), np.array(bad, F4)
    model = one_node(kind, [good], **attributes)
    mod = from_onnx(model)
    mod = relax.get_pipeline(pipeline)(mod) if pipeline == "zero" else mod
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    for rows in (good, good[:0]):
        machine["main"](tvm.runtime.tensor(rows))
    with pytest.raises(Exception, match="Status Message"):
        expected(model, bad)
    with pytest.raises(ValueError, match=rf"node 'it' \({kind}\)"):
        machine["main"](tvm.runtime.tensor(bad))


# -- what models are refused ----------------------------------------------------------------------


def text_input():
    node = helper.make_node(
        "OneHotEncoder", ["x"], ["y"], "it", domain="ai.onnx.ml", cats_strings=["a"]
    )
    x = helper.make_tensor_value_info("x", TensorProto.STRING, [None, 1])
    return wrapped([node], [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])


X = rows_of(F4)
REFUSED = {
    "svm": (one_node("SVMRegressor", [X], n_supports=1, coefficients=[1.0]), "SVMRegressor"),
    "svm classifier": (one_node("SVMClassifier", [X], ("int64", "float32")), "SVMClassifier"),
    "another domain": (one_node("Add", [X, X], domain="mine"), "mine Add"),
    "no such node": (one_node("Foo", [X], domain=""), "Foo"),
    "our node in TVM's domain": (one_node("Scaler", [X], domain=""), "ai.onnx Scaler"),
    "a text input": (text_input(), "tensors of texts"),
    "categories that are texts": (
        one_node("OneHotEncoder", [X], cats_strings=["a"]),
        "cats_strings",
    ),
    "keys that are texts": (
        one_node("LabelEncoder", [X], version=2, keys_strings=["a"], values_floats=[1.0]),
        "keys",
    ),
    "probit": (
        one_node(
            "LinearRegressor", [X], coefficients=[1.0] * 6, targets=2, post_transform="PROBIT"
        ),
        "PROBIT",
    ),
    "unequal scale": (one_node("Scaler", [X], scale=[1.0, 2.0], offset=[1.0]), "scale"),
    "scale of others": (one_node("Scaler", [X], scale=[1.0, 2], offset=[1.0, 2]), "2 values"),
    "imputer of others": (one_node("Imputer", [X], imputed_value_floats=[1.0, 2]), "2 values"),
    "imputer of integers": (one_node("Imputer", [X], imputed_value_int64s=[1]), "imputed_value"),
    "norm": (one_node("Normalizer", [X], norm="L3"), "L3"),
    "sizes": (one_node("FeatureVectorizer", [X], inputdimensions=[1, 2]), "inputdimensions"),
    "keys and values": (
        one_node("LabelEncoder", [X], version=2, keys_floats=[1.0, 2], values_floats=[1.0]),
        "2 keys for 1 values",
    ),
    "keys of another dtype": (
        one_node("LabelEncoder", [X], version=2, keys_int64s=[1], values_floats=[1.0]),
        "float32 is none of int64",
    ),
    "unknown attribute": (one_node("Scaler", [X], scal=[1.0]), "scal"),
    "attribute of another type": (one_node("Scaler", [X], scale="a", offset=[1.0]), "scale"),
    "coefficients": (one_node("LinearRegressor", [X], coefficients=[1.0]), "coefficients"),
    "class labels": (
        one_node(
            "LinearClassifier", [X], ("int64", "float32"), coefficients=[1.0] * 3, intercepts=[1.0]
        ),
        "classlabels",
    ),
    "trees": (one_node("TreeEnsembleRegressor", [X], nodes_modes=["LEAF"]), "it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_is_refused_with_the_name_of_its_node(name):
    model, what = REFUSED[name]
    with pytest.raises((ModelFormatError, UnsupportedModel)) as caught:
        from_onnx(model)
    kind = model.graph.node[0].op_type
    assert str(caught.value).startswith(f"from_onnx: node 'it' ({kind}): ")
    assert what in str(caught.value)


def test_a_node_whose_input_nothing_gives_is_refused():
    model = one_node("Scaler", [X], scale=[1.0], offset=[0.0])
    model.graph.node[0].input[0] = "nobody"
    with pytest.raises(ModelFormatError, match=r"node 'it' \(Scaler\): .*'nobody'"):
        from_onnx(model)


BROKEN = """
import sys, warnings
import tvm_forest.relax
from tvm_forest.errors import ForestError
warnings.simplefilter("ignore")
data = open(sys.argv[1], "rb").read()
pieces = [data[:size] for size in range(0, len(data), max(1, len(data) // 40))]
for at in range(0, len(data), max(1, len(data) // 60)):
    pieces.append(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1:])
for piece in pieces:
    try:
        tvm_forest.relax.from_onnx(piece)
    except ForestError as error:
        print("refused", type(error).__name__)
    else:
        print("read")
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trees", "linear"])
@pytest.mark.cases(1)
def test_damaged_models_are_refused_and_never_end_the_process(name, tmp_path):
    linear = {"coefficients": COEFFICIENTS, "intercepts": [0.1, 0.2, 0.3], "targets": 3}
    models = {
        "trees": FORESTS["logistic float32"],
        "linear": one_node("LinearRegressor", [X], **linear),
    }
    path = tmp_path / "model.onnx"
    path.write_bytes(models[name].SerializeToString())
    command = [sys.executable, "-c", BROKEN, str(path)]
    folder = Path(tvm_forest.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    lines = [
        line
        for line in done.stdout.splitlines()
        if line.split(" ")[0] in ("refused", "read", "done")
    ]
    assert done.returncode == 0, done.stderr[-2000:]
    assert lines[-1] == "done"
    assert sum(line.startswith("refused") for line in lines) >= 40


# -- ways in --------------------------------------------------------------------------------------


def test_models_are_taken_as_files_bytes_and_objects(tmp_path):
    model = one_node("Scaler", [X], scale=[2.0], offset=[1.0])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    mods = [from_onnx(given) for given in (model, model.SerializeToString(), path, str(path))]
    assert all(tvm_ffi.structural_equal(mod, mods[0]) for mod in mods)
    with pytest.raises(ModelFormatError, match="no onnx.ModelProto"):
        from_onnx(3)


def test_the_options_are_those_of_tvm():
    constant = numpy_helper.from_array(np.array([2, 0]), "places")
    node = helper.make_node("ArrayFeatureExtractor", ["a.b", "places"], ["y"], domain="ai.onnx.ml")
    x = helper.make_tensor_value_info("a.b", TensorProto.FLOAT, [None, None])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = wrapped([node], [x], [y], constants=[constant])
    mod = from_onnx(
        model,
        shape_dict={"a.b": [6, 3]},
        dtype_dict={"a.b": "float64"},
        keep_params_in_input=True,
        sanitize_input_names=False,
    )
    rows, places = mod["main"].params
    assert (rows.name, places.name) == ("a.b", "places")
    assert (str(rows.ty.dtype.dtype), [int(n) for n in rows.ty.shape.values]) == ("float64", [6, 3])
    (kept,) = mod["main"].attrs["params"]
    assert kept.numpy().tolist() == [2, 0]
    values = np.arange(18.0).reshape(6, 3)
    assert np.array_equal(compiled(mod)(values, kept.numpy())[0], values[:, [2, 0]])


def test_importing_changes_nothing_in_tvm_and_threads_may_do_it_together():
    from tvm.relax.frontend.onnx import from_onnx as theirs
    from tvm.relax.frontend.onnx import onnx_frontend

    before = onnx_frontend._get_convert_map
    model, done = FORESTS["raw float32"], []

    def read():
        done.append(tvm_forest.relax.from_onnx(model))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(tvm_ffi.structural_equal(mod, done[0]) for mod in done) and len(done) == 4
    assert onnx_frontend._get_convert_map is before
    with warnings.catch_warnings(), pytest.raises(Exception, match="TreeEnsembleClassifier"):
        warnings.simplefilter("ignore")
        theirs(model)
