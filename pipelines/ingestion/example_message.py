"""The message of `tf.Example` and `tf.SequenceExample`, made without TensorFlow."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "embedps.input"
_FIELDS = descriptor_pb2.FieldDescriptorProto
_KINDS = (
    ("bytes_list", "BytesList", _FIELDS.TYPE_BYTES),
    ("float_list", "FloatList", _FIELDS.TYPE_FLOAT),
    ("int64_list", "Int64List", _FIELDS.TYPE_INT64),
)


@cache
def record_class() -> Any:
    """Makes the class of both messages, which are alike on the wire; TensorFlow is not needed."""
    file = descriptor_pb2.FileDescriptorProto(
        name="embedps/input_example.proto", package=_PACKAGE, syntax="proto3"
    )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of, _) in enumerate(_KINDS, 1):
        _field(feature, name, number, of, _FIELDS.LABEL_OPTIONAL).oneof_index = 0
    for number, (_, of, kind) in enumerate(_KINDS):
        lists = file.message_type.add(name=of)
        field = lists.field.add(name="value", number=1, type=kind, label=_FIELDS.LABEL_REPEATED)
        if number:
            field.options.packed = True
    steps = file.message_type.add(name="FeatureList")
    _field(steps, "feature", 1, "Feature", _FIELDS.LABEL_REPEATED)
    _map(file.message_type.add(name="Features"), "feature", "Feature")
    _map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    record = file.message_type.add(name="Record")
    _field(record, "features", 1, "Features", _FIELDS.LABEL_OPTIONAL)
    _field(record, "feature_lists", 2, "FeatureLists", _FIELDS.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Record"))


def _field(message: Any, name: str, number: int, of: str, label: Any) -> Any:
    kind = f".{_PACKAGE}.{of}"
    return message.field.add(
        name=name, number=number, type=_FIELDS.TYPE_MESSAGE, type_name=kind, label=label
    )


def _map(message: Any, name: str, of: str) -> None:
    words = (word.capitalize() for word in name.split("_"))
    entry = message.nested_type.add(name=f"{''.join(words)}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELDS.TYPE_STRING, label=_FIELDS.LABEL_OPTIONAL)
    _field(entry, "value", 2, of, _FIELDS.LABEL_OPTIONAL)
    _field(message, name, 1, f"{message.name}.{entry.name}", _FIELDS.LABEL_REPEATED)


@cache
def is_longer_first() -> bool:
    """Tells in which order this protobuf writes two names of which one begins with the other."""
    record = record_class()()
    for name in ("a", "ab"):
        record.features.feature[name].SetInParent()
    data: bytes = record.SerializeToString(deterministic=True)
    return data.index(b"\x02ab") < data.index(b"\x01a")
