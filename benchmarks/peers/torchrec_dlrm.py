"""Measures TorchRec's DLRM over FusedEmbeddingBagCollection: FBGEMM's embeddings on CPU.

The sparse optimizer is fused into the backward pass. bfloat16 uses torch.autocast and compiled
dense parts; float32 does not compile them. Each choice was the faster one.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any

import torch
import torchrec.optim
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.peers import protocol

_KINDS = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": torchrec.optim.RowWiseAdagrad,
}


class TorchRec:
    """Trains with one collection of tables per sparse optimizer, and one network per variant."""

    def __init__(self, work: protocol.Work) -> None:
        self._work = work
        self._keys = [f"C{i + 1}" for i in range(len(work.cardinalities))]
        self._collections: dict[str, Any] = {}

    def prepare(self, variant: protocol.Variant) -> protocol.Measure:
        if variant.task not in ("train", "lookup"):
            raise protocol.UnsupportedError("it saves and reads like PyTorch")
        if variant.kind == "adagrad":
            raise protocol.UnsupportedError(
                "row-wise Adagrad is measured; this would need its own tables, 4 GB for W1"
            )
        size, kind = variant.batch, variant.kind
        data = [self._batch(*arrays) for arrays in self._work.batches(size)]
        if kind not in self._collections:
            self._collections[kind] = self._collection(kind)
        collection = self._collections[kind]
        if variant.task == "lookup":

            def look_up(number: int) -> None:
                looked = collection(data[number % len(data)].sparse_features).values()
                looked.backward(torch.ones_like(looked))

            return protocol.stepper(look_up, size)
        model = DLRM(
            embedding_bag_collection=collection,
            dense_in_features=self._work.num_numerics,
            dense_arch_layer_sizes=self._work.bottom_mlp,
            over_arch_layer_sizes=self._work.top_mlp,
        )
        train = DLRMTrain(model)
        parts = (model.dense_arch, model.over_arch)
        dense_kind = torch.optim.SGD if kind == "sgd" else torch.optim.Adagrad
        dense = dense_kind([p for part in parts for p in part.parameters()], lr=0.01)
        if variant.precision == "bfloat16":
            model.dense_arch = torch.compile(model.dense_arch)
            model.inter_arch = torch.compile(model.inter_arch)
            model.over_arch = torch.compile(model.over_arch)

        def step(number: int) -> None:
            with _precision(variant.precision):
                loss, _ = train(data[number % len(data)])
            dense.zero_grad()
            loss.backward()
            dense.step()

        return protocol.stepper(step, size)

    def _collection(self, kind: str) -> Any:
        tables = [
            EmbeddingBagConfig(
                name=key, embedding_dim=self._work.dim, num_embeddings=rows, feature_names=[key]
            )
            for key, rows in zip(self._keys, self._work.cardinalities, strict=True)
        ]
        return FusedEmbeddingBagCollection(
            tables=tables,
            optimizer_type=_KINDS[kind],
            optimizer_kwargs={"lr": 0.01},
            device=torch.device("cpu"),
        )

    def _batch(self, numerics: Any, ids: Any, labels: Any) -> Batch:
        size = len(labels)
        features = KeyedJaggedTensor(
            keys=self._keys,
            values=torch.from_numpy(ids.reshape(-1)),
            lengths=torch.ones(ids.size, dtype=torch.int32),
            stride=size,
        )
        # Computed now, and not in the first step.
        features.offsets()
        features.length_per_key()
        features.offset_per_key()
        return Batch(
            dense_features=torch.from_numpy(numerics),
            sparse_features=features,
            labels=torch.from_numpy(labels),
        )


def _precision(name: str) -> Any:
    if name == "bfloat16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    protocol.serve(TorchRec, ["torch", "torchrec", "fbgemm-gpu-cpu", "numpy"])
