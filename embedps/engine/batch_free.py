"""Functions whose rows have the same bits in any batch, on every processor.

With AVX-512, TensorFlow's products sum in order of the inner dimension. With less, they choose
instructions by the number of rows and of threads, and these sum in other orders; its softmax rounds
otherwise where a row begins within a vector. There a function's graph gets our twins of these ops.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import tensorflow as tf
from tensorflow.python.eager import context

from embedps import kernels

_Result = TypeVar("_Result")

_TWINS: Final = frozenset({"MatMul", "BatchMatMulV2", "Softmax", "LogSoftmax"})
_SUFFIX: Final = "_batch_free"


@functools.cache
def needs_twins() -> bool:
    """Tells whether TensorFlow's products lack AVX-512: the processor, or ONEDNN_MAX_CPU_ISA."""
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if most and not most.startswith(("AVX512", "AVX10", "ALL", "DEFAULT")):
        return True
    cpus = Path("/proc/cpuinfo")
    return not (cpus.is_file() and "avx512bw" in cpus.read_text())


def batch_free(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Makes a function whose rows have the same bits in any batch of whole lanes.

    Its products and softmaxes of float32 become our twins, also those in functions and loops that
    it calls. An einsum, a convolution and a product of another dtype stay TensorFlow's.

    Args:
      function: of tensors, to be called where a tf.function is traced.
    """

    @tf.autograph.experimental.do_not_convert  # tf.function converts the given one
    @functools.wraps(function)
    def traced(*arguments: Any) -> _Result:
        if not needs_twins():
            return function(*arguments)
        inner = tf.function(function).get_concrete_function(*arguments)
        return _with_twins(inner, arguments)  # type: ignore[no-any-return]

    return traced  # type: ignore[no-any-return]


def _with_twins(function: Any, arguments: Any) -> Any:
    """Copies a function's graph with twins into the graph that is traced now."""
    kernels.load()
    graph, outer = function.graph, tf.compat.v1.get_default_graph()
    given = [x for x in tf.nest.flatten(arguments, expand_composites=True) if tf.is_tensor(x)]
    given += [outer.capture(x) for x in function.captured_inputs]
    values = dict(zip((x.name for x in graph.inputs), given, strict=True))
    for variable in graph.variables:
        outer.watch_variable(variable)
    copied = graph.as_graph_def()
    placeholders = {x.op.name for x in graph.inputs}
    nodes = [node for node in copied.node if node.name not in placeholders]
    del copied.node[:]
    copied.node.extend(nodes)
    _take_twins(copied)
    for each in copied.library.function:
        context.context().add_function_def(each)
    del copied.library.function[:]
    read = {name if ":" in name else f"{name}:0" for node in nodes for name in node.input}
    made = [x for x in graph.outputs if x.name not in values]
    found = tf.graph_util.import_graph_def(
        copied,
        input_map={name: value for name, value in values.items() if name in read},
        return_elements=[x.name for x in made],
        name="batch_free",
    )
    for ours, theirs in zip(found, made, strict=True):
        ours.set_shape(theirs.shape)
    values |= {theirs.name: ours for ours, theirs in zip(found, made, strict=True)}
    return tf.nest.map_structure(
        lambda x: values[x.name], graph.structured_outputs, expand_composites=True
    )


def _take_twins(graph_def: Any) -> None:
    """Renames ops to their twins, and functions, as they differ from those of their names."""
    functions = graph_def.library.function
    names = {each.signature.name for each in functions}
    for each in functions:
        each.signature.name += _SUFFIX
        each.attr.pop("api_implements", None)  # or Keras' functions of this name take its place
        _rename(each.node_def, names)
    _rename(graph_def.node, names)
    for gradient in graph_def.library.gradient:
        gradient.function_name = _renamed(gradient.function_name, names)
        gradient.gradient_func = _renamed(gradient.gradient_func, names)


def _rename(nodes: Iterable[Any], functions: set[str]) -> None:
    for node in nodes:
        if node.op in _TWINS and node.attr["T"].type == tf.float32.as_datatype_enum:
            node.op = f"Embedps{node.op}"
        node.op = _renamed(node.op, functions)
        node.attr.pop("_class", None)  # it may lie with an input, which is another node now
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                if called.name:
                    called.name = _renamed(called.name, functions)


def _renamed(name: str, functions: set[str]) -> str:
    return name + _SUFFIX if name in functions else name
