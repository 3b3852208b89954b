"""Replays an export's warm-up requests as TensorFlow Serving does before it serves the export."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from embedps.serving.server import messages

FILE = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000  # that TensorFlow Serving takes


def prediction_log() -> Any:
    """The message of a record, as its published definition has it."""
    pool = descriptor_pool.DescriptorPool()

    def add(file: Any) -> None:
        for each in file.dependencies:
            add(each)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        pool.Add(proto)

    predict = messages.PredictRequest.DESCRIPTOR.file
    add(predict)
    package = "tensorflow.serving"
    file = descriptor_pb2.FileDescriptorProto(
        name="prediction_log.proto", package=package, syntax="proto3", dependency=[predict.name]
    )
    for name, field, number, kind in (
        ("PredictLog", "request", 1, "PredictRequest"),
        ("PredictionLog", "predict_log", 6, "PredictLog"),
    ):
        added = file.message_type.add(name=name).field.add(name=field, number=number)
        added.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        added.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        added.type_name = f".{package}.{kind}"
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.PredictionLog"))


def replay(export: Path) -> Counter[str]:
    """Runs each request in a session of the export; gives how many there are by signature."""
    kind, found = prediction_log(), Counter[str]()
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(export / FILE))]
    assert 0 < len(records) <= MAX_RECORDS
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(export))
        for record in records:
            log = kind.FromString(record)
            request = log.predict_log.request
            signature = graph.signature_def[request.model_spec.signature_name]
            assert set(request.inputs) == set(signature.inputs)
            fed = {}
            for name, tensor in request.inputs.items():
                assert tensor.dtype == signature.inputs[name].dtype
                fed[signature.inputs[name].name] = tf.make_ndarray(tensor)
            session.run([each.name for each in signature.outputs.values()], fed)
            found[request.model_spec.signature_name] += 1
    return found
