"""Measures facebookresearch/dlrm: its network and optimizers in PyTorch, as `dlrm_s_pytorch.py`.

That project is on no registry, so this module reimplements its parts: nn.EmbeddingBag with sparse
gradients, the batched product and the gather of its lower triangle, torch.optim.SGD and Adagrad,
and the row-wise Adagrad of optim/rwsadagrad.py. bfloat16 uses torch.autocast and a compiled
network.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.peers import protocol


class Network(nn.Module):
    """A bottom and a top MLP with the dot interaction between them."""

    def __init__(self, work: protocol.Work) -> None:
        super().__init__()
        self.bottom = _mlp([work.num_numerics, *work.bottom_mlp], last=nn.ReLU())
        self.top = _mlp([work.num_interactions, *work.top_mlp], last=nn.Identity())
        vectors = len(work.cardinalities) + 1
        self.register_buffer("lower", torch.tril_indices(vectors, vectors, offset=-1))

    def forward(self, numerics: Any, embeddings: list[Any]) -> Any:
        x = self.bottom(numerics)
        vectors = torch.cat([x, *(e.to(x.dtype) for e in embeddings)], dim=1)
        vectors = vectors.view(x.shape[0], -1, x.shape[1])
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.lower[0], self.lower[1]]
        return self.top(torch.cat([x, pairs], dim=1))


class RowwiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator per row of a sparse gradient (rwsadagrad.py's arithmetic)."""

    def __init__(self, parameters: Any, lr: float, eps: float = 1e-10) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                gradient = weight.grad.coalesce()
                rows, values = gradient.indices()[0], gradient.values()
                state = self.state[weight]
                if not state:
                    state["sum"] = torch.zeros(weight.shape[0])
                state["sum"].index_add_(0, rows, values.pow(2).mean(dim=1))
                scale = state["sum"][rows].sqrt_().add_(group["eps"])
                weight.index_add_(0, rows, values / scale[:, None], alpha=-group["lr"])


class Checkpoints:
    """Saves a table and its accumulators by torch.save, as dlrm_s_pytorch.py; it has no deltas."""

    def __init__(self, work: protocol.Work) -> None:
        rows = protocol.CHECKPOINT_ROWS
        self._path = work.folder / "pytorch.pt"
        self._state = {"weight": _uniform(rows, work.dim), "sum": _uniform(rows, work.dim)}

    def save(self) -> Callable[[], None]:
        def save() -> None:
            torch.save(self._state, self._path)
            protocol.sync(self._path)

        return save

    def delta(self) -> Callable[[], None]:
        self._state["weight"][::100] += 1.0
        return self.save()

    def restore(self) -> Callable[[], None]:
        torch.save(self._state, self._path)

        def restore() -> None:
            for name, value in torch.load(self._path, weights_only=True).items():
                self._state[name].copy_(value)

        return restore


class PyTorchDLRM:
    """Trains with tables that all variants share, and one network per variant."""

    def __init__(self, work: protocol.Work) -> None:
        self._work = work
        self._bags = nn.ModuleList(
            nn.EmbeddingBag(c, work.dim, mode="sum", sparse=True, _weight=_uniform(c, work.dim))
            for c in work.cardinalities
        )
        self._sparse: dict[str, Any] = {}

    def prepare(self, variant: protocol.Variant) -> protocol.Measure:
        if variant.task == "checkpoint":
            return protocol.checkpointer(Checkpoints(self._work), variant.kind)
        if variant.task == "input":
            raise protocol.UnsupportedError("it has no reader for Parquet or records")
        size = variant.batch
        offsets = torch.arange(size)
        data = [
            (torch.from_numpy(n), [torch.from_numpy(i) for i in ids], torch.from_numpy(y)[:, None])
            for n, ids, y in self._work.batches(size)
        ]
        if variant.kind not in self._sparse:
            kinds = {
                "sgd": torch.optim.SGD,
                "adagrad": torch.optim.Adagrad,
                "rowwise_adagrad": RowwiseAdagrad,
            }
            self._sparse[variant.kind] = kinds[variant.kind](self._bags.parameters(), lr=0.01)
        sparse = self._sparse[variant.kind]
        if variant.task == "lookup":
            ones = [torch.ones(size, self._work.dim)] * len(self._bags)

            def look_up(number: int) -> None:
                _, ids, _ = data[number % len(data)]
                looked = [bag(i, offsets) for bag, i in zip(self._bags, ids, strict=True)]
                sparse.zero_grad()
                torch.autograd.backward(looked, ones)
                sparse.step()

            return protocol.stepper(look_up, size)
        network = Network(self._work)
        if variant.precision == "bfloat16":
            network.compile()
        dense_kind = torch.optim.SGD if variant.kind == "sgd" else torch.optim.Adagrad
        dense = dense_kind(network.parameters(), lr=0.01)
        loss_of = nn.BCEWithLogitsLoss()

        def step(number: int) -> None:
            numerics, ids, labels = data[number % len(data)]
            with _precision(variant.precision):
                looked = [bag(i, offsets) for bag, i in zip(self._bags, ids, strict=True)]
                loss = loss_of(network(numerics, looked).float(), labels)
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()

        return protocol.stepper(step, size)


def _mlp(widths: list[int], *, last: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def _uniform(rows: int, dim: int) -> Any:
    return torch.empty(rows, dim).uniform_(-0.05, 0.05)


def _precision(name: str) -> Any:
    if name == "bfloat16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


if __name__ == "__main__":
    protocol.serve(PyTorchDLRM, ["torch", "numpy"])
