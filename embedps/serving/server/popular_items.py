"""The items of the rows that training updates most often: what an unknown query gets."""

from __future__ import annotations

import numpy as np

from embedps.serving.server.item_index import NO_ITEM, NO_SCORE, Ids
from embedps.serving.server.ivf_index import Floats


class PopularItems:
    """Items in order of their rows' rates of updates; of equal ones the smaller key first."""

    def __init__(self, keys: Ids, rates: Floats) -> None:
        """Orders items.

        Args:
          keys: of the items.
          rates: the share of steps that update each, float32.
        """
        order = np.lexsort((keys, -rates))
        self._keys, self._rates = keys[order], rates[order]

    def best(self, k: int, *, seen: Ids, allowed: Ids | None) -> tuple[Floats, Ids]:
        """Gives the first k items that are not seen; of those allowed, if there is a list.

        Returns:
          Their rates, and their keys. Where there is no item any more, NO_SCORE and NO_ITEM.
        """
        if allowed is None:
            places = np.arange(min(k + len(seen), len(self._keys)))
        else:
            places = np.flatnonzero(np.isin(self._keys, allowed))
        places = places[~np.isin(self._keys[places], seen)][:k]
        more = (0, k - len(places))
        return (
            np.pad(self._rates[places], more, constant_values=np.float32(NO_SCORE)),
            np.pad(self._keys[places], more, constant_values=NO_ITEM),
        )
