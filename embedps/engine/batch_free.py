"""Functions whose rows have the same bits in any batch, on every processor.

With AVX-512, TensorFlow's products sum in order of the inner dimension. With less, they choose
instructions by the number of rows and of threads, and these sum in other orders; its softmax rounds
otherwise where a row begins within a vector. There a function's graph gets our twins of these ops.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import tensorflow as tf
from tensorflow.python.eager import context

from embedps import kernels
from embedps.console.lines import say
from embedps.engine.einsum_products import product_of

_Result = TypeVar("_Result")

_TWINS: Final = frozenset({"MatMul", "BatchMatMulV2", "Softmax", "LogSoftmax"})
_KEPT: Final = _TWINS | {
    "BatchMatMul",
    "BatchMatMulV3",
    "Conv2D",
    "Conv2DBackpropInput",
    "Conv3D",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNative",
    "Einsum",
}
_SUFFIX: Final = "_batch_free"


@functools.cache
def needs_twins() -> bool:
    """Tells whether TensorFlow's products lack AVX-512: the processor, or ONEDNN_MAX_CPU_ISA."""
    named = (os.environ.get(f"{prefix}_MAX_CPU_ISA", "") for prefix in ("ONEDNN", "DNNL"))
    most = next(filter(None, named), "").upper()
    if most and not most.startswith(("AVX512", "AVX10", "ALL", "DEFAULT")):
        return True
    cpus = Path("/proc/cpuinfo")
    return not (cpus.is_file() and "avx512bw" in cpus.read_text())


def batch_free(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Makes a function whose rows have the same bits in any batch of whole lanes.

    Its products, einsums and softmaxes of float32 become our twins, also those in functions and
    loops that it calls. A convolution, a product of another dtype and an einsum that is no product
    of two stay TensorFlow's: a line on stderr names them.

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
    products: dict[bytes, str | None] = {}
    for nodes in (graph_def.node, *[each.node_def for each in functions]):
        _take_products(nodes, functions, products)
    names = {each.signature.name for each in functions}
    for each in functions:
        each.signature.name += _SUFFIX
        each.attr.pop("api_implements", None)  # or Keras' functions of this name take its place
        _rename(each.node_def, names)
    _rename(graph_def.node, names)
    _tell_kept((graph_def.node, *(each.node_def for each in functions)))
    for gradient in graph_def.library.gradient:
        gradient.function_name = _renamed(gradient.function_name, names)
        gradient.gradient_func = _renamed(gradient.gradient_func, names)


def _take_products(nodes: Iterable[Any], functions: Any, products: dict[bytes, str | None]) -> None:
    """Makes einsums call functions that have a product, which is renamed as all others."""
    for node in nodes:
        if node.op != "Einsum" or node.attr["T"].type != tf.float32.as_datatype_enum:
            continue
        equation = node.attr["equation"].s
        if equation not in products:
            products[equation] = None
            if made := product_of(equation.decode()):
                traced = tf.function(made[0], autograph=False)
                definition = traced.get_concrete_function(*made[1]).function_def
                functions.add().CopyFrom(definition)
                products[equation] = definition.signature.name
        if name := products[equation]:
            node.op = "PartitionedCall"
            node.attr.clear()
            node.attr["Tin"].list.type[:] = [tf.float32.as_datatype_enum] * 2
            node.attr["Tout"].list.type[:] = [tf.float32.as_datatype_enum]
            node.attr["f"].func.name = name


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


def _tell_kept(nodes: Iterable[Iterable[Any]]) -> None:
    """Names the ops whose kernels choose instructions by the size of a batch."""
    kept = set()
    for node in (each for some in nodes for each in some):
        if node.op in _KEPT:
            dtype = tf.as_dtype(node.attr["T"].type or node.attr["Ta"].type)
            if dtype.is_floating:
                kept.add(f"{node.op} of {dtype.name}")
    if kept:
        _tell(", ".join(sorted(kept)))


@functools.cache
def _tell(kept: str) -> None:
    """Tells it once per process."""
    say(
        f"embedps: a record's scores may differ in their last bits from batch to batch: "
        f"TensorFlow computes the model's {kept}, and it sums in another order for other batches "
        "where there is no AVX-512",
        file=sys.stderr,
    )


def _renamed(name: str, functions: set[str]) -> str:
    return name + _SUFFIX if name in functions else name
