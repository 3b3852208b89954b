"""Requests for the best items: a query's columns, how many items, and which to leave out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set

import numpy as np

from embedps.data.columns import Columns
from embedps.errors import UsageError
from embedps.serving.inputs import lengths_name
from embedps.serving.server.request_error import invalid
from embedps.serving.server.requests import Request, RequestFormat
from embedps.serving.server.tensor_values import Array

MAX_FOUND = 1 << 23  # items of an answer
K, SEEN, ALLOWED = "k", "seen", "allowed"
# No tensors of a request: whether it has a list of `allowed`, and its largest `k`.
_IS_LIMITED, _MOST = "embedps_is_limited", "embedps_most"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopKRequest:
    """The parts of a request.

    Attributes:
      query: the query tower's columns.
      k: how many items, int64 [rows].
      most: how wide the answer is: the largest `k` of the requests whose records these are, also
        where they are but some records of a request.
      seen: ids to leave out, and the lists' lengths.
      allowed: ids that may be found, and the lists' lengths.
      is_limited: bool [rows], whether the list of `allowed` counts.
    """

    query: Request
    k: Array
    most: int
    seen: tuple[Array, Array]
    allowed: tuple[Array, Array]
    is_limited: Array


class TopKFormat(RequestFormat):
    """What the requests hold: a tensor per column of the query, and those that may be absent."""

    def __init__(
        self, query: Columns, *, missing_id: int, has_ids: bool, default_k: int, max_k: int
    ) -> None:
        """Takes the query's columns.

        Args:
          query: the columns.
          has_ids: whether items have ids of int64, which `seen` and `allowed` can name.
          default_k: how many items a request gets that does not say it.
          max_k: how many it may ask for.

        Raises:
          UsageError: a column of the query has the name of another tensor.
        """
        filters = (SEEN, ALLOWED) if has_ids else ()
        if clash := [name for name in (K, *filters) if name in query.names]:
            raise UsageError(
                f"requests for the best items have a tensor {clash[0]!r}, so no column of the "
                "query may have this name: rename it in the dataset's schema"
            )
        columns = dataclasses.replace(
            query,
            integers=(*query.integers, K, _IS_LIMITED, _MOST),
            id_lists=(*query.id_lists, *filters),
        )
        super().__init__(columns, missing_id=missing_id)
        self.query = RequestFormat(query, missing_id=missing_id)
        self._default_k, self._max_k = default_k, max_k
        self._filters = filters
        del self.specs[_IS_LIMITED], self.specs[_MOST]
        optional = {name for filter in filters for name in (filter, lengths_name(filter))}
        self._optional = frozenset({K, *optional})

    def check_names(self, names: Set[str]) -> None:
        """Checks the names of a request's tensors: `k`, `seen` and `allowed` may be absent."""
        for name in self._filters:
            if (name in names) != (lengths_name(name) in names):
                raise invalid(f"tensors {name!r} and {lengths_name(name)!r} must be there together")
        super().check_names(set(names) | self._optional)

    def request(self, given: Mapping[str, Array]) -> Request:
        """Makes a request of its tensors; see `RequestFormat.request`."""
        self.check_names(given.keys())
        empty, none = np.zeros(0, np.int64), np.zeros(1, np.int64)
        whole = {K: np.full(1, self._default_k, np.int64), **given}
        for name in self._filters:
            whole.setdefault(name, empty)
            whole.setdefault(lengths_name(name), none)
        k = whole[K]
        if np.any(k < 1) or np.any(k > self._max_k):
            raise invalid(f"{K!r} must be from 1 to {self._max_k} but is {k.tolist()[:5]}")
        whole[_IS_LIMITED] = np.full(1, ALLOWED in given, np.int64)
        whole[_MOST] = np.full(1, k.max(initial=1), np.int64)
        request = self._request(whole)
        if (found := request.rows * int(k.max(initial=0))) > MAX_FOUND:
            raise invalid(
                f"a request must ask for at most {MAX_FOUND} items, its records times the largest "
                f"{K!r}, but asks for {found}: send fewer records at a time"
            )
        return request

    def parts(self, request: Request) -> TopKRequest:
        """Splits a request, or several that were put together."""
        lists = dict(zip(self.lists, request.lists, strict=True))
        rows = dict(zip(self.integers, request.integers, strict=True))
        nothing = (np.zeros(0, np.int64), np.zeros(request.rows, np.int64))
        query = [place for place, n in enumerate(self.integers) if n not in (K, _IS_LIMITED, _MOST)]
        return TopKRequest(
            query=Request(
                rows=request.rows,
                floats=request.floats,
                integers=request.integers[query],
                lists=tuple(lists[name] for name in self.query.lists),
            ),
            k=rows[K],
            most=int(rows[_MOST].max(initial=1)),
            seen=lists.get(SEEN, nothing),
            allowed=lists.get(ALLOWED, nothing),
            is_limited=rows[_IS_LIMITED] != 0,
        )

    def zeros(self, rows: int) -> Request:
        """Makes a request of zeros and empty lists, for the usual number of items."""
        return self.request(self.query.zero_tensors(rows))
