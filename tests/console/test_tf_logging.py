"""What is kept of TensorFlow's messages."""

from embedps.console.tf_logging import op_error_text

ONE = """Graph execution error:

Socket closed
Additional GRPC error information while calling /tensorflow.WorkerService/RunGraph:
:UNKNOWN:Error received from peer {grpc_status:14, grpc_message:"Socket closed"}
\t [[{{node while/body/_1/UnpackTensors}}]] [Op:__inference_train_unit_1]"""

SEVERAL = """Graph execution error:

2 root error(s) found.
  (0) UNAVAILABLE: Socket closed
Additional GRPC error information while calling /tensorflow.WorkerService/RunGraph:
:UNKNOWN:Error received from peer {grpc_status:14, grpc_message:"Socket closed"}
\t [[{{node while/body/_1/UnpackTensors}}]]
\t [[while/_42]]
  (1) UNAVAILABLE: recvmsg:Connection reset by peer
\t [[{{node while/body/_1/UnpackTensors}}]]
0 successful operations.
1 derived errors ignored. [Op:__inference_train_unit_1]"""


def test_an_op_s_words_are_without_what_is_put_around_them():
    assert op_error_text(ONE) == "Socket closed"


def test_of_several_ops_the_first_one_s_words_are_told():
    assert op_error_text(SEVERAL) == "Socket closed"


def test_a_message_that_only_looks_like_several_is_kept():
    assert op_error_text("2 root error(s) found.") == "2 root error(s) found."
