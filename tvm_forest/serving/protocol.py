"""Parses requests and writes answers of the Open Inference Protocol, version 2.

takes: the body of a request, or its fields; gives: rows, names of outputs, the body of an answer.

    body = JSON                            Content-Length
    body = JSON, bytes of tensors          Inference-Header-Content-Length: that of the JSON

https://github.com/kserve/open-inference-protocol, with the extension `binary_tensor_data`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import orjson

from ..errors import InputError
from ..forest import Array
from ..predictor.inputs import to_rows
from ..predictor.inputs.encoding import to_objects
from ..streams.batches import label_rows
from .models import OUTPUTS, ROWS, Model
from .refusals import Refused
from .tensors import (
    DATATYPES,
    name_datatype,
    read_binary,
    read_list,
    read_shape,
    write_binary,
    write_json,
)

SIZE_PARAMETER = "binary_data_size"
"""Parameter of a tensor: the number of its bytes, which follow the JSON."""

_IGNORED = {
    *("content_type", "priority", "timeout"),
    *("sequence_id", "sequence_start", "sequence_end"),
}
"""Parameters that clients of other servers send, and that change no number of an answer."""

_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?\b(?:NaN|Infinity)\b', re.DOTALL)
"""Matches texts, to skip them, and the numbers that Python's clients write but JSON lacks."""

_SPELLED = {b"NaN": b"null", b"Infinity": b'"Infinity"', b"-Infinity": b'"-Infinity"'}

ReadTensor = Callable[[dict[str, Any], tuple[int, ...], str], Array]
"""Returns the tensor of an input, given its fields, its shape and its name in messages."""


class Output(NamedTuple):
    """A requested output.

    Attributes:
        name: its name.
        is_binary: whether it is answered as bytes, not as JSON.
    """

    name: str
    is_binary: bool


class Request(NamedTuple):
    """A request to a model.

    Attributes:
        id: the client's id of the request; None for none.
        rows: (R, F) in the row dtype of the model; objects for a model with an encoder.
        outputs: the requested outputs.
    """

    id: str | None
    rows: Array
    outputs: list[Output]


class Answer(NamedTuple):
    """The body of an answer.

    Attributes:
        parts: the body in consecutive parts.
        json_size: length of the JSON in bytes if binary tensors follow, else None.
    """

    parts: list[bytes]
    json_size: int | None


def read_request(body: bytes, json_size: int | None, model: Model) -> Request:
    """Parse the body of an HTTP request.

    Args:
        body: the whole body.
        json_size: length of the JSON in bytes, from a header; None if the body is all JSON.
        model: the requested model.

    Raises:
        Refused: the request violates the protocol, or does not fit the model.
    """
    if json_size is not None and json_size > len(body):
        raise Refused(
            f"header 'Inference-Header-Content-Length': {json_size}, and the body has {len(body)} "
            "bytes"
        )
    size = len(body) if json_size is None else json_size
    asked = _parse(memoryview(body)[:size])
    data = memoryview(body)[size:]

    def read_tensor(item: dict[str, Any], shape: tuple[int, ...], where: str) -> Array:
        nonlocal data
        array, data = _read_tensor(item, shape, where, data)
        return array

    request = make_request(asked, model, read_tensor)
    if len(data):
        raise Refused(f"{len(data)} bytes after the JSON belong to no tensor")
    return request


def make_request(
    asked: dict[str, Any], model: Model, read_tensor: ReadTensor, is_binary: bool | None = None
) -> Request:
    """Make a request from its fields, which came as JSON or by gRPC.

    Args:
        asked: the fields, as in JSON.
        model: the requested model.
        read_tensor: returns the tensor of an input; called for all inputs, in their order.
        is_binary: whether all outputs are bytes; None to decide by the parameters.

    Raises:
        Refused: the request violates the protocol, or does not fit the model.
    """
    name = asked.get("id")
    if name is not None and type(name) is not str:
        raise Refused("field 'id': expected a text")
    sizes, forms = ((SIZE_PARAMETER,), ("binary_data",)) if is_binary is None else ((), ())
    inputs = _read_inputs(asked, read_tensor, sizes)
    outputs = _read_outputs(asked, model, bool(is_binary), forms)
    try:
        return Request(name, _make_rows(inputs, model), outputs)
    except InputError as error:
        raise Refused(str(error)) from None


def _parse(text: memoryview) -> dict[str, Any]:
    """Parse a JSON object; NaN and Infinity, which only Python writes, are accepted.

    Raises:
        Refused: the text is not a JSON object.
    """
    try:
        asked = orjson.loads(text)
    except orjson.JSONDecodeError:
        known = _TOKENS.sub(lambda found: _SPELLED.get(found[0], found[0]), bytes(text))
        try:
            asked = orjson.loads(known)
        except orjson.JSONDecodeError as error:
            raise Refused(f"the body is no JSON: {error}; a missing value is null") from None
    if not isinstance(asked, dict):
        raise Refused("the body is no JSON object")
    return asked


def _read_parameters(holder: dict[str, Any], where: str, known: Iterable[str]) -> dict[str, Any]:
    """Return the parameters of a tensor or a request; refuse those that are unknown.

    Args:
        holder: the tensor or the request, as fields.
        where: beginning of messages.
        known: names of the parameters that are allowed.

    Raises:
        Refused: a parameter is unknown, or they are not an object.
    """
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise Refused(f"{where}: field 'parameters': expected an object")
    for name in parameters:
        if name not in known and name not in _IGNORED:
            have = ", ".join(known) or "none"
            raise Refused(f"{where}: parameter {name!r:.80} is unknown (have: {have})")
    return parameters


def _list_objects(asked: dict[str, Any], field: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (name in messages, fields) of each tensor in a field, "inputs" or "outputs".

    Raises:
        Refused: the field has no list of tensors, a tensor has no name, or two have the same.
    """
    items = asked[field]
    if not isinstance(items, list) or not items:
        raise Refused(f"field '{field}': expected a list of one or more tensors")
    names = set()
    for place, item in enumerate(items):
        if not isinstance(item, dict) or type(item.get("name")) is not str:
            raise Refused(f"{field}[{place}]: expected an object with a text 'name'")
        names.add(item["name"])
    if len(names) < len(items):
        raise Refused(f"field '{field}': a name occurs twice")
    return [(f"{field}[{place}] '{x['name']:.80}'", x) for place, x in enumerate(items)]


def _read_inputs(
    asked: dict[str, Any], read_tensor: ReadTensor, known: tuple[str, ...]
) -> dict[str, Array]:
    """Return the tensors of a request by name.

    Args:
        asked: the fields of the request.
        read_tensor: see `make_request`.
        known: names of the parameters that an input may have.

    Raises:
        Refused: there are no inputs, or one violates the protocol.
    """
    if "inputs" not in asked:
        raise Refused("field 'inputs' is missing")
    inputs = {}
    for where, item in _list_objects(asked, "inputs"):
        datatype = item.get("datatype")
        if type(datatype) is not str or datatype not in DATATYPES:
            have = ", ".join(DATATYPES)
            raise Refused(f"{where}: datatype {datatype!r:.80} is unknown (have: {have})")
        shape = read_shape(item.get("shape"), where)
        _read_parameters(item, where, known)
        inputs[item["name"]] = read_tensor(item, shape, where)
    return inputs


def _read_tensor(
    item: dict[str, Any], shape: tuple[int, ...], where: str, data: memoryview
) -> tuple[Array, memoryview]:
    """Return the tensor of an input, and the bytes that are left for later inputs.

    Args:
        item: the fields of the input.
        shape: shape of the tensor.
        where: beginning of messages.
        data: the bytes after the JSON that earlier inputs have left.

    Raises:
        Refused: the input has neither or both of a list and bytes, or they do not fit its shape.
    """
    size = (item.get("parameters") or {}).get(SIZE_PARAMETER)
    if (size is None) == ("data" not in item):
        raise Refused(f"{where}: give either field 'data' or parameter '{SIZE_PARAMETER}'")
    if size is None:
        return read_list(item["data"], item["datatype"], shape, f"{where}: field 'data'"), data
    if type(size) is not int or not 0 <= size <= len(data):
        raise Refused(
            f"{where}: parameter '{SIZE_PARAMETER}': {size!r:.80}, and {len(data)} bytes are "
            "left after the JSON and the tensors before"
        )
    where = f"{where}: parameter '{SIZE_PARAMETER}'"
    return read_binary(data[:size], item["datatype"], shape, where), data[size:]


def _read_outputs(
    asked: dict[str, Any], model: Model, default: bool, known: tuple[str, ...]
) -> list[Output]:
    of_request = ("binary_data_output",) if known else ()
    parameters = _read_parameters(asked, "the request", of_request)
    if known:
        default = _read_bool(parameters, "binary_data_output", default, "the request")
    if asked.get("outputs") is None:
        return [Output(OUTPUTS[0], default)]
    outputs = []
    for where, item in _list_objects(asked, "outputs"):
        if item["name"] not in model.outputs:
            raise Refused(
                f"{where}: the model has no such output (have: {', '.join(model.outputs)})"
            )
        own = _read_parameters(item, where, known)
        outputs.append(Output(item["name"], _read_bool(own, "binary_data", default, where)))
    return outputs


def _read_bool(parameters: dict[str, Any], name: str, default: bool, where: str) -> bool:
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise Refused(f"{where}: parameter '{name}': expected true or false")
    return value


def _make_rows(inputs: dict[str, Array], model: Model) -> Array:
    """Return rows from one tensor with all columns, or from a tensor for each column.

    Raises:
        InputError: the rows do not fit the model.
    """
    forest, columns = model.forest, model.columns
    spelled = dict(zip(forest.spell([*inputs]), inputs.values(), strict=True))
    if columns is not None and spelled.keys() == set(columns) and len(spelled) == len(inputs):
        rows = _join_columns(spelled, columns, model)
    elif list(inputs) == [ROWS]:
        rows = inputs[ROWS]
    else:
        raise _explain_names(inputs, columns)
    return to_rows(rows, forest) if forest.encoder is None else to_objects(rows, forest)


def _join_columns(inputs: dict[str, Array], columns: tuple[str, ...], model: Model) -> Any:
    """Join columns to an array, or to a pyarrow table if there are texts or category labels.

    Raises:
        Refused: columns have other shapes than (R,) or (R, 1), or not the same R.
        InputError: a table is needed, and pyarrow is not installed.
    """
    arrays = {name: inputs[name] for name in columns}
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] == 1:
            arrays[name] = array = array[:, 0]
        if array.ndim != 1 or len(array) != len(next(iter(arrays.values()))):
            raise Refused(
                f"input {name!r:.80}: shape {list(inputs[name].shape)}; all columns have the shape "
                "[R] or [R, 1], with the same R"
            )
    forest = model.forest
    if forest.encoder is None and all(array.dtype.kind in "fiub" for array in arrays.values()):
        if not forest.category_names and not forest.pandas_categories:
            rows = np.empty((len(array), len(columns)), forest.row_dtype)
            with np.errstate(over="ignore"):
                for place, array in enumerate(arrays.values()):
                    rows[:, place] = array
            return rows
    labels = {i for i in forest.category_names} if forest.encoder is None else set()
    values = (
        array.tolist() if array.dtype == object or i in labels else array
        for i, array in enumerate(arrays.values())
    )
    return label_rows(dict(zip(columns, values, strict=True)), "predict")


def _explain_names(inputs: dict[str, Array], columns: tuple[str, ...] | None) -> Refused:
    if columns is None:
        return Refused(f"field 'inputs': the model has no names; give one input, {ROWS!r}")
    missing = [name for name in columns if name not in inputs]
    unknown = [name for name in inputs if name not in columns]
    return Refused(
        f"field 'inputs': give one input, {ROWS!r}, or one for each column; missing are "
        f"{', '.join(missing) or 'none'!s:.300}; unknown are {', '.join(unknown) or 'none'!s:.300}"
    )


def write_answer(model: Model, request: Request, results: dict[str, Array]) -> Answer:
    """Return the answer to a request.

    Args:
        model: the requested model.
        request: the request, for its id and outputs.
        results: results by the names of outputs.
    """
    data: list[bytes] = []
    name = "" if request.id is None else f'"id":{orjson.dumps(request.id).decode()},'
    before = f'{{"model_name":"{model.name}","model_version":"{model.version}",{name}"outputs":['
    text = []
    for name, is_binary in request.outputs:
        array = results[name]
        shape = ",".join(map(str, array.shape))
        about = f'{{"name":"{name}","datatype":"{name_datatype(array)}","shape":[{shape}],'
        text.append(f"{before}{about}".encode())
        if is_binary:
            own = list(write_binary(array))
            text.append(b'"parameters":{"%b":%d}}' % (SIZE_PARAMETER.encode(), count(own)))
            data += own
        else:
            text += [b'"data":', *write_json(array), b"}"]
        before = ","
    text.append(b"]}")
    has_binary = any(output.is_binary for output in request.outputs)
    return Answer([*text, *data], count(text) if has_binary else None)


def count(parts: list[bytes]) -> int:
    """Return the total length of parts in bytes."""
    return sum(map(len, parts))
