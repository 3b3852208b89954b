"""Makes declarations of the JSON that stands for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from embedps.tables import optimizers
from embedps.tables.admission import Admission, Chance, MinCount
from embedps.tables.eviction import EvictionPolicy, MinNorm, SizeLimit, TimeToLive
from embedps.tables.specs import FeatureSpec, Initializer, TableSpec

_ADMISSIONS: dict[str, type[Admission]] = {"min_count": MinCount, "chance": Chance}
_EVICTIONS: dict[str, type[EvictionPolicy]] = {
    p.__name__: p for p in (MinNorm, SizeLimit, TimeToLive)
}


def table_of(stored: Mapping[str, Any]) -> TableSpec:
    """Makes the table of which `TableSpec.to_json` gave this."""
    fields = dict(stored)
    fields["optimizer"] = optimizers.make(**stored["optimizer"])
    if stored["initializer"] is not None:
        fields["initializer"] = Initializer(**stored["initializer"])
    if "admission" in stored:
        fields["admission"] = _made(_ADMISSIONS, stored["admission"])
    fields["eviction"] = tuple(_made(_EVICTIONS, each) for each in stored.get("eviction", ()))
    return TableSpec(**fields)


def feature_to_json(feature: FeatureSpec) -> dict[str, Any]:
    """Gives a feature's fields; its table by its name."""
    return dataclasses.asdict(dataclasses.replace(feature, table=feature.table_name))


def feature_of(stored: Mapping[str, Any]) -> FeatureSpec:
    """Makes the feature of which `feature_to_json` gave this."""
    return FeatureSpec(**stored)


def _made(kinds: Mapping[str, Any], stored: Mapping[str, Any]) -> Any:
    return kinds[stored["kind"]](**{k: v for k, v in stored.items() if k != "kind"})
