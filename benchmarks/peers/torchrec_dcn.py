"""Trains TorchRec's DLRM_DCN, the reference of MLPerf's DLRM-DCNv2, over FBGEMM's tables on CPU.

`python -m benchmarks.peers.torchrec_dcn FOLDER SETTINGS` reads what `benchmarks.mlperf` wrote,
trains on each batch once, in order, writes the logits of the scored examples to FOLDER/logits.npy
and prints {"rate": examples per second, "versions": {…}}.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchrec.optim
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def main(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Trains and scores."""
    torch.manual_seed(settings["seed"])
    hot, batch, rate = settings["hot"], settings["batch"], settings["rate"]
    keys = [f"C{i + 1}" for i in range(len(hot))]
    tables = [
        EmbeddingBagConfig(
            name=key,
            embedding_dim=settings["dim"],
            num_embeddings=rows,
            feature_names=[key],
            pooling=PoolingType.MEAN,
        )
        for key, rows in zip(keys, settings["cardinalities"], strict=True)
    ]
    collection = FusedEmbeddingBagCollection(
        tables=tables,
        optimizer_type=torchrec.optim.RowWiseAdagrad,
        optimizer_kwargs={"lr": rate},
        device=torch.device("cpu"),
    )
    model = DLRM_DCN(
        embedding_bag_collection=collection,
        dense_in_features=settings["numerics"],
        dense_arch_layer_sizes=settings["bottom_mlp"],
        over_arch_layer_sizes=[*settings["deep_mlp"], 1],
        dcn_num_layers=settings["cross_layers"],
        dcn_low_rank_dim=settings["cross_rank"],
    )
    with torch.no_grad():  # all as ours begin: rows of its own are smaller, and layers too
        for rows in collection.state_dict().values():
            rows.uniform_(-settings["initial"], settings["initial"])
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.xavier_uniform_(layer.weight)
                layer.bias.zero_()
    network = [p for name, p in model.named_parameters() if "embedding_bag" not in name]
    # Keras' Adagrad begins with this.
    dense = torch.optim.Adagrad(network, lr=rate, initial_accumulator_value=0.1)
    lengths = torch.from_numpy(np.repeat(np.array(hot, np.int32), batch))

    def read(split: str) -> list[tuple[Any, Any, Any]]:
        arrays = np.load(folder / f"{split}.npz")
        parts = np.split(arrays["ids"], np.cumsum(hot)[:-1], axis=1)
        found = []
        for first in range(0, len(arrays["label"]), batch):
            at = slice(first, first + batch)
            values = np.concatenate([part[at].reshape(-1) for part in parts])
            features = KeyedJaggedTensor(
                keys=keys, values=torch.from_numpy(values), lengths=lengths, stride=batch
            )
            for known in (features.offsets, features.length_per_key, features.offset_per_key):
                known()  # computed now, and not in the first step
            numerics = torch.from_numpy(arrays["numerics"][at])
            found.append((numerics, features, torch.from_numpy(arrays["label"][at])))
        return found

    loss_of = torch.nn.BCEWithLogitsLoss()
    batches = read("train")
    began = time.perf_counter()
    for number, (numerics, features, labels) in enumerate(batches):
        if number == settings["warm_up_batches"]:
            began = time.perf_counter()
        loss = loss_of(model(numerics, features).squeeze(-1), labels)
        dense.zero_grad()
        loss.backward()
        dense.step()
    secs = time.perf_counter() - began
    with torch.no_grad():
        logits = [model(numerics, features).squeeze(-1) for numerics, features, _ in read("eval")]
    np.save(folder / "logits.npy", torch.cat(logits).numpy())
    timed = len(batches) - settings["warm_up_batches"]
    packages = ("torch", "torchrec", "fbgemm-gpu-cpu")
    return {
        "rate": timed * batch / secs,
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))), flush=True)
