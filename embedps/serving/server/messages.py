"""The messages of TensorFlow Serving's API that the server takes and gives, and of gRPC's health.

They are declared here as their published definitions have them: names, numbers and types of fields
are the contract on the wire. They lie in a pool of their own, so that a program may also import
tensorflow-serving-api. A message that is left out, or a field, is skipped as an unknown one.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow.core.protobuf import error_codes_pb2, meta_graph_pb2

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
HEALTH_SERVICE = "grpc.health.v1.Health"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "int64": _Field.TYPE_INT64,
}
_ENUMS = (".tensorflow.error.Code", "ModelVersionStatus.State", "HealthCheckResponse.ServingStatus")

# Fields as (name, number, type). "*T" is a repeated T, "map T" a map of strings to T. A type with
# a leading dot is of another file.
_SERVING: dict[str, list[tuple[str, int, str]]] = {
    "ModelSpec": [
        ("name", 1, "string"),
        ("version", 2, ".google.protobuf.Int64Value"),
        ("signature_name", 3, "string"),
        ("version_label", 4, "string"),
    ],
    "PredictRequest": [
        ("model_spec", 1, "ModelSpec"),
        ("inputs", 2, "map .tensorflow.TensorProto"),
        ("output_filter", 3, "*string"),
    ],
    "PredictResponse": [
        ("outputs", 1, "map .tensorflow.TensorProto"),
        ("model_spec", 2, "ModelSpec"),
    ],
    "SignatureDefMap": [("signature_def", 1, "map .tensorflow.SignatureDef")],
    "GetModelMetadataRequest": [("model_spec", 1, "ModelSpec"), ("metadata_field", 2, "*string")],
    "GetModelMetadataResponse": [
        ("model_spec", 1, "ModelSpec"),
        ("metadata", 2, "map .google.protobuf.Any"),
    ],
    "GetModelStatusRequest": [("model_spec", 1, "ModelSpec")],
    "StatusProto": [("error_code", 1, ".tensorflow.error.Code"), ("error_message", 2, "string")],
    "ModelVersionStatus": [
        ("version", 1, "int64"),
        ("state", 2, "ModelVersionStatus.State"),
        ("status", 3, "StatusProto"),
    ],
    "GetModelStatusResponse": [("model_version_status", 1, "*ModelVersionStatus")],
}
_HEALTH: dict[str, list[tuple[str, int, str]]] = {
    "HealthCheckRequest": [("service", 1, "string")],
    "HealthCheckResponse": [("status", 1, "HealthCheckResponse.ServingStatus")],
}
_VALUES = {
    "ModelVersionStatus": (
        "State",
        {"UNKNOWN": 0, "START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50},
    ),
    "HealthCheckResponse": (
        "ServingStatus",
        {"UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2, "SERVICE_UNKNOWN": 3},
    ),
}
_IN_A_ONEOF = {"ModelSpec": ("version_choice", ("version", "version_label"))}


def _make_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    copied: set[str] = set()

    def copy(file: Any) -> None:
        if file.name in copied:
            return
        copied.add(file.name)
        for each in file.dependencies:
            copy(each)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        pool.Add(proto)

    used = [m.DESCRIPTOR for m in (any_pb2, wrappers_pb2, tensor_pb2, types_pb2)]
    used += [m.DESCRIPTOR for m in (error_codes_pb2, meta_graph_pb2)]
    for file in used:
        copy(file)
    pool.Add(_file("tensorflow.serving", _SERVING, [file.name for file in used]))
    pool.Add(_file("grpc.health.v1", _HEALTH, []))
    return pool


def _file(
    package: str, messages: dict[str, list[tuple[str, int, str]]], imported: list[str]
) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"embedps/{package}.proto", package=package, syntax="proto3", dependency=imported
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if name in _VALUES:
            enum_name, values = _VALUES[name]
            enum = message.enum_type.add(name=enum_name)
            for value, number in values.items():
                enum.value.add(name=value, number=number)
        oneof, members = _IN_A_ONEOF.get(name, ("", ()))
        if oneof:
            message.oneof_decl.add(name=oneof)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = _Field.LABEL_OPTIONAL
            if kind.startswith("map "):
                kind = _add_entry(message, f"{package}.{name}", field_name, kind[4:], package)
                field.label = _Field.LABEL_REPEATED
            elif kind.startswith("*"):
                kind = kind[1:]
                field.label = _Field.LABEL_REPEATED
            _set_type(field, kind, package)
            if field_name in members:
                field.oneof_index = 0
    return file


def _add_entry(
    message: descriptor_pb2.DescriptorProto, owner: str, field: str, value: str, package: str
) -> str:
    """Declares the message of a map's entries; returns its type."""
    name = "".join(part.capitalize() for part in field.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for index, (part, kind) in enumerate((("key", "string"), ("value", value))):
        added = entry.field.add(name=part, number=index + 1, label=_Field.LABEL_OPTIONAL)
        _set_type(added, kind, package)
    return f".{owner}.{name}"


def _set_type(field: Any, kind: str, package: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
        field.type_name = kind if kind.startswith(".") else f".{package}.{kind}"


_POOL = _make_pool()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


ModelSpec = _message("tensorflow.serving.ModelSpec")
PredictRequest = _message("tensorflow.serving.PredictRequest")
PredictResponse = _message("tensorflow.serving.PredictResponse")
SignatureDefMap = _message("tensorflow.serving.SignatureDefMap")
GetModelMetadataRequest = _message("tensorflow.serving.GetModelMetadataRequest")
GetModelMetadataResponse = _message("tensorflow.serving.GetModelMetadataResponse")
GetModelStatusRequest = _message("tensorflow.serving.GetModelStatusRequest")
GetModelStatusResponse = _message("tensorflow.serving.GetModelStatusResponse")
ModelVersionStatus = _message("tensorflow.serving.ModelVersionStatus")
HealthCheckRequest = _message("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _message("grpc.health.v1.HealthCheckResponse")
