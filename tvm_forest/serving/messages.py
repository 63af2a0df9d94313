"""The gRPC messages of the protocol, and their conversion to requests and answers.

takes: bytes of a message; gives: Request; and bytes of the answer.

The message classes are made from `inference.proto` when this file is imported, so the package has
no generated code. They do not clash with those of a client in the same process.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ..forest import Array
from .models import Model
from .protocol import Request, make_request
from .refusals import Refused
from .tensors import name_datatype, read_binary, read_list, split, write_binary

_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""For each datatype, the field of InferTensorContents for its values; FP16 and BF16 have none."""


_MESSAGE = re.compile(r"^message (\w+) {\n(.*?)^}", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^ +(repeated |map<string, )?(\w+)>? (\w+) = (\d+);", re.MULTILINE)


def _make_classes() -> dict[str, Any]:
    """Parse `inference.proto`; return the message classes by name."""
    text = Path(__file__).with_name("inference.proto").read_text(encoding="utf-8")
    file = descriptor_pb2.FileDescriptorProto(name="inference", package="inference")
    file.syntax = "proto3"
    for name, body in _MESSAGE.findall(text):
        message = file.message_type.add(name=name)
        if "oneof choice" in body:
            message.oneof_decl.add(name="choice")
        for found in _FIELD.findall(body):
            _add_field(message, *found)
    pool = descriptor_pool.DescriptorPool()  # the default pool may have a client's classes
    pool.AddSerializedFile(file.SerializeToString())
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {name.removeprefix("inference."): kind for name, kind in classes.items()}


def _add_field(message: Any, form: str, kind: str, name: str, number: str) -> None:
    """Add a field to a message; `form` is "repeated ", "map<string, " or "" for a single value."""
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if form else field.LABEL_OPTIONAL
    if message.oneof_decl:
        field.oneof_index = 0
    if form.startswith("map"):  # a list of pairs, whose class name protobuf prescribes
        pair = message.nested_type.add(name=f"{name.title()}Entry")
        pair.options.map_entry = True
        _add_field(pair, "", "string", "key", "1")
        _add_field(pair, "", kind, "value", "2")
        kind = f"{message.name}.{pair.name}"
    if kind[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".inference.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")


CLASSES = _make_classes()
"""The classes of the messages by name."""


def read_message(name: str, body: bytes) -> Any:
    """Decode bytes as a message of the class `name`.

    Raises:
        Refused: they are not such a message.
    """
    try:
        return CLASSES[name].FromString(body)
    except DecodeError:
        raise Refused(f"{len(body)} bytes are no message {name}") from None


def to_values(parameters: Any) -> dict[str, Any]:
    """Return the parameters of a message as Python values; None for an empty one."""
    return {
        name: None if (kind := one.WhichOneof("choice")) is None else getattr(one, kind)
        for name, one in parameters.items()
    }


def read_request(message: Any, model: Model) -> Request:
    """Return the request in a ModelInferRequest.

    If its tensors are raw bytes, the answer's are as well.

    Raises:
        Refused: it violates the protocol, or does not fit the model.
    """
    raw, tensors = message.raw_input_contents, iter(message.inputs)
    if raw and len(raw) != len(message.inputs):
        raise Refused(
            f"field 'raw_input_contents': {len(raw)} tensors, and 'inputs' has "
            f"{len(message.inputs)}; give the bytes of all or of none"
        )
    asked: dict[str, Any] = {"id": message.id or None, "parameters": to_values(message.parameters)}
    asked["inputs"] = [
        {**_to_fields(x), "datatype": x.datatype, "shape": list(x.shape)} for x in message.inputs
    ]
    asked["outputs"] = [*map(_to_fields, message.outputs)] or None
    parts = iter(raw)

    def read_tensor(_: Any, shape: tuple[int, ...], where: str) -> Array:
        return _read_tensor(next(tensors), next(parts, None), shape, where)

    return make_request(asked, model, read_tensor, is_binary=bool(raw))


def _to_fields(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "parameters": to_values(tensor.parameters)}


def _read_tensor(tensor: Any, raw: bytes | None, shape: tuple[int, ...], where: str) -> Array:
    datatype, contents = tensor.datatype, tensor.contents
    given = [field.name for field, _ in contents.ListFields()]
    if raw is not None and not given:
        return read_binary(memoryview(raw), datatype, shape, f"{where}: 'raw_input_contents'")
    name = None if raw is not None else _FIELDS.get(datatype)
    if name is None or given not in ([], [name]):
        raise Refused(
            f"{where}: field 'contents': {', '.join(given) or 'nothing'}; {datatype} is given in "
            f"{f'{name!r} or ' if name else ''}'raw_input_contents', and nothing else beside it"
        )
    values, where = list(getattr(contents, name)), f"{where}: field '{name}'"
    if datatype == "BYTES":
        try:
            values = [text.decode() for text in values]
        except UnicodeDecodeError:
            raise Refused(f"{where}: a text is not of UTF-8") from None
    return read_list(values, datatype, shape, where)


def write_answer(model: Model, request: Request, results: dict[str, Array]) -> bytes:
    """Return the encoded ModelInferResponse to a request; tensors are raw if the request's are."""
    answer = CLASSES["ModelInferResponse"](
        model_name=model.name, model_version=model.version, id=request.id or ""
    )
    for name, is_binary in request.outputs:
        array = results[name]
        datatype = name_datatype(array)
        output = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_binary:
            answer.raw_output_contents.append(b"".join(write_binary(array)))
            continue
        contents = getattr(output.contents, _FIELDS[datatype])
        for part in split(array):
            values = part.tolist()
            contents.extend([x.encode() for x in values] if datatype == "BYTES" else values)
    return answer.SerializeToString()
