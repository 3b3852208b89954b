"""Makes declarations of the JSON that stands for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from embedps.tables import admission, eviction, optimizers
from embedps.tables.specs import FeatureSpec, Initializer, TableSpec
from embedps.tables.stored_names import from_stored


def table_of(stored: Mapping[str, Any]) -> TableSpec:
    """Makes the table of which `TableSpec.to_json` gave this."""
    fields = from_stored(stored)
    fields["optimizer"] = optimizers.make(**from_stored(stored["optimizer"]))
    if stored["initializer"] is not None:
        fields["initializer"] = Initializer(**stored["initializer"])
    if "admission" in stored:
        fields["admission"] = _made(admission.BY_KIND, stored["admission"])
    fields["eviction"] = tuple(_made(eviction.BY_NAME, each) for each in stored.get("eviction", ()))
    return TableSpec(**fields)


def feature_to_json(feature: FeatureSpec) -> dict[str, Any]:
    """Gives a feature's fields; its table by its name."""
    return dataclasses.asdict(dataclasses.replace(feature, table=feature.table_name))


def feature_of(stored: Mapping[str, Any]) -> FeatureSpec:
    """Makes the feature of which `feature_to_json` gave this."""
    return FeatureSpec(**stored)


def _made(kinds: Mapping[str, Any], stored: Mapping[str, Any]) -> Any:
    return kinds[stored["kind"]](**{k: v for k, v in stored.items() if k != "kind"})
