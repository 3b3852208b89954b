"""Finds the records of text with quoted fields, which may hold line breaks (RFC 4180)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_HINT = 'double a quote within a field, or declare quote = "" if quotes are plain characters'
_MOST_QUOTED = 256  # fields of a wrong record that are followed: no file chooses how long it takes
RETURN_REASON = "must have no carriage return within"


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of a text: int64 [records] `ends` and `lines`, and the reasons of bad ones."""

    ends: NDArray[np.int64]
    """The offset after each record's line break."""
    lines: NDArray[np.int64]
    """The line on which each record begins, from 0."""
    reasons: dict[int, str]
    """Why a record cannot be read, by its index."""

    @property
    def end(self) -> int:
        """The bytes of all records; those after it are the beginning of the next one."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def texts(self, data: bytes) -> list[bytes]:
        """Returns the records of their text, each without its line break."""
        return [data[a : b - 1] for a, b in pairwise([0, *self.ends.tolist()])]

    def without_first(self) -> Records:
        """Returns the other records, of the text after the first."""
        return Records(
            ends=self.ends[1:] - self.ends[0],
            lines=self.lines[1:],
            reasons={at - 1: reason for at, reason in self.reasons.items() if at},
        )

    def without_returns(self, data: bytes) -> tuple[bytes, Records]:
        """Drops the carriage return of each line break between records; those in fields stay."""
        kept = np.delete(np.frombuffer(data, np.uint8), self.ends[self._has_return(data)] - 2)
        ends = self.ends - np.cumsum(self._has_return(data))
        return kept.tobytes(), replace(self, ends=ends)

    def with_reasons_of_returns(self, data: bytes) -> Records:
        """Returns records of which those that end in a carriage return are bad."""
        wrong = np.flatnonzero(self._has_return(data))
        return replace(self, reasons={int(at): RETURN_REASON for at in wrong} | self.reasons)

    def _has_return(self, data: bytes) -> NDArray[np.bool_]:
        codes = np.frombuffer(data, np.uint8)
        return np.asarray((self.ends >= 2) & (codes[self.ends - 2] == ord("\r")))


class RecordFinder:
    """Finds records; a quote that never closes makes bad only the lines up to where it opens."""

    def __init__(self, delimiter: str, quote: str) -> None:
        self._delimiter, self._quote = ord(delimiter), ord(quote)
        d, q = re.escape(delimiter.encode()), quote.encode()
        self._open = re.compile(rb"%b[^%b]*+(?:%b%b[^%b]*+)*+" % (q, q, q, q, q))
        after = rb"(?=%b|\r?\n)" % d
        plain = rb"(?:[^%b%b\n][^%b\n]*+|%b)" % (q, d, d, after)
        field = rb"(?:%b%b%b|%b)" % (self._open.pattern, q, after, plain)
        self._quoted = re.compile(rb"(?:^|(?<=%b))%b%b%b?" % (d, self._open.pattern, q, after))
        self._border = re.compile(rb"%b|\r?\n" % d)
        self._unquoted = re.compile(rb"[^%b\n]*+(?:%b(?!%b)[^%b\n]*+)*+%b?" % (d, d, q, d, d))
        self._fields = re.compile(rb"(?:%b%b)*+" % (field, d))
        self._record = re.compile(rb"%b(?:%b%b)*+\r?\n" % (field, d, field))

    def find(self, data: bytes, *, limit: int | None = None) -> Records:
        """Finds the records of whole lines that begin outside of quotes.

        Args:
          data: the lines, each with its line break.
          limit: the most bytes of a last record whose quote does not close yet, which is left out;
            None if the data ends here.
        """
        found = self._find_plain(data)
        if found is not None:
            rest = len(data) - found.end
            if rest == 0 or (limit is not None and rest <= limit):
                return found
        return self._find_each(data, limit)

    def without_quoted(self, record: bytes) -> bytes:
        """Returns a record without its quoted fields."""
        return self._quoted.sub(b"", record)

    def _find_plain(self, data: bytes) -> Records | None:
        """Finds records if quotes only begin and end fields or are doubled within; else None."""
        codes = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(codes == self._quote)
        opening, closing = quotes[::2], quotes[1::2]
        is_border = np.zeros(256, np.bool_)
        is_border[[self._delimiter, self._quote, ord("\n")]] = True
        after = codes[closing + 1]
        at_return = closing[after == ord("\r")]
        begin = (opening == 0) | is_border[codes[opening - 1]]
        end = is_border[after] | (after == ord("\r"))
        if not (begin.all() and end.all() and (codes[at_return + 2] == ord("\n")).all()):
            return None
        breaks = np.flatnonzero(codes == ord("\n"))
        is_end = np.searchsorted(quotes, breaks) % 2 == 0
        lines = np.concatenate([[0], np.flatnonzero(is_end) + 1])[:-1]
        return Records(ends=breaks[is_end] + 1, lines=lines, reasons={})

    def _end_of_bad(self, data: bytes, at: int) -> tuple[int, bool]:
        """Returns where a record ends whose quote at `at` is wrong, and whether a quote stays open.

        Text after a closing quote belongs to its field, as in Python's csv and pandas, so that the
        lines within stay one record. A closing quote that rather opens a field (it follows a
        delimiter or a line break) shows that the one before never closed: its line ends there.
        """
        borders = (self._delimiter, ord("\n"))
        first = at
        for _ in range(_MOST_QUOTED):
            opened = self._open.match(data, at)
            if opened is None:
                return at + 1, False
            close = opened.end()
            if close == len(data):
                return data.index(b"\n", at) + 1, True
            is_opening = close - 1 > at and data[close - 1] in borders
            if is_opening and not self._border.match(data, close + 1):
                return data.index(b"\n", at) + 1, False
            rest = self._unquoted.match(data, close + 1)
            at = rest.end() if rest else close + 1
        return data.index(b"\n", first) + 1, False

    def _find_each(self, data: bytes, limit: int | None) -> Records:
        last: list[int] = []  # the line on which each record ends
        reasons: dict[int, str] = {}
        quote, start, line = bytes([self._quote]), 0, 0
        while start < len(data):
            found = data.find(quote, start)
            without = data.count(b"\n", start, found if found >= 0 else len(data))
            last.extend(range(line, line + without))
            line += without
            if found < 0:
                break
            start = data.rfind(b"\n", start, found) + 1 or start
            if match := self._record.match(data, start):
                end = match.end()
            else:
                fields = self._fields.match(data, start)
                opened = self._open.match(data, fields.end() if fields else start)
                if opened is None:
                    raise AssertionError("a record that does not match has a quote that opens")
                end, is_open = self._end_of_bad(data, opened.start())
                if is_open and limit is not None and len(data) - start <= limit:
                    break
                reasons[len(last)] = (
                    f"the quote at byte {opened.start() - start} must be closed before a delimiter "
                    f"or a line's end: {_HINT}"
                )
            line += data.count(b"\n", start, end)
            last.append(line - 1)
            start = end
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))[last] + 1
        lines = np.concatenate([[0], np.array(last, np.int64) + 1])[:-1]
        return Records(ends=ends, lines=lines, reasons=reasons)
