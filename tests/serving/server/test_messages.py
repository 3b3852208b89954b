"""Messages have the numbers and types of TensorFlow Serving's published definitions."""

import numpy as np

from embedps.serving.server import messages


def field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2, len(payload)]) + payload


def test_a_request_is_read_from_bytes_on_the_wire() -> None:
    version = b"\x08\x0c"  # Int64Value.value = 12
    spec = field(1, b"clicks") + field(2, version) + field(3, b"serving_default")
    tensor = b"\x08\x09" + field(2, field(2, b"\x08\x02")) + field(4, np.array([7, 8]).tobytes())
    entry = field(1, b"C1") + field(2, tensor)
    data = field(1, spec) + field(2, entry) + field(3, b"score")
    request = messages.PredictRequest.FromString(data)
    assert request.model_spec.name == "clicks"
    assert request.model_spec.version.value == 12
    assert request.model_spec.signature_name == "serving_default"
    assert request.inputs["C1"].dtype == 9
    assert request.inputs["C1"].tensor_shape.dim[0].size == 2
    assert list(request.output_filter) == ["score"]
    assert request.SerializeToString() == data


def test_a_status_is_written_as_bytes_on_the_wire() -> None:
    response = messages.GetModelStatusResponse()
    failed = response.model_version_status.add(version=7, state="END")
    failed.status.error_code = "DATA_LOSS"
    failed.status.error_message = "m"
    status = b"\x08\x0f" + field(2, b"m")
    assert response.SerializeToString() == field(1, b"\x08\x07\x10\x32" + field(3, status))


def test_health_is_that_of_grpc() -> None:
    assert messages.HealthCheckResponse(status="SERVING").SerializeToString() == b"\x08\x01"
    assert messages.HEALTH_SERVICE == "grpc.health.v1.Health"


def test_the_types_of_tensorflow_serving_may_be_declared_beside() -> None:
    from google.protobuf import descriptor_pool

    names = [m.DESCRIPTOR.full_name for m in (messages.PredictRequest, messages.ModelSpec)]
    assert names == ["tensorflow.serving.PredictRequest", "tensorflow.serving.ModelSpec"]
    for name in names:
        try:
            descriptor_pool.Default().FindMessageTypeByName(name)
        except KeyError:
            continue
        raise AssertionError(f"{name} is in the default pool")
