"""Finds the features of many `tf.Example` records at once, without TensorFlow or objects of Python.

All records of a block are walked in step by NumPy: the first feature of each, then the second. What
is read is the form that protobuf's own writers give. All else is declined: other encodings, damage,
a name twice, feature lists, and what so few records have that steps do not pay. A parser of
protobuf then reads it or says what is wrong, so both mean the same by a record.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .example_message import is_longer_first

LEAST_AT_ONCE = 8
"""A step of fewer records takes longer than protobuf does for them."""
_MOST_BYTES = 1 << 20  # of a record: what steps find takes memory of many times its bytes
_PAD = bytes(16)  # tags and lengths are looked at a little beyond the end
_FAR = 1 << 40  # beyond any end
_MOST_DIGITS = 10  # of a varint
_BYTES, _FLOATS, _INTS = 1, 2, 3
_PART, _VALUE = 0x0A, 0x12  # tags of the fields 1 and 2 with a length

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]
_Chars = NDArray[np.uint8]


class Values(NamedTuple):
    """The values of one kind that a feature has.

    Attributes:
      records: the places of the records that have any.
      counts: values of each, 1 or more.
      flat: the values: binary, float64 or int64.
    """

    records: _Ints
    counts: _Ints
    flat: pa.Array


@dataclass(frozen=True)
class _Parts:
    """Byte ranges, ascending: each one's owner, the place of its tag, and its content."""

    owner: _Ints
    tag: _Ints
    first: _Ints
    last: _Ints

    def of(self, owners: _Ints) -> _Parts:
        """Names the owners' own owners."""
        return _Parts(owners[self.owner], self.tag, self.first, self.last)

    def take(self, chosen: NDArray[np.generic]) -> _Parts:
        return _Parts(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def put(self, places: _Ints) -> _Parts:
        """Puts each part at its place."""
        order = np.empty(len(places), np.int64)
        order[places] = np.arange(len(places))
        return self.take(order)


class ExampleFeatures:
    """The features of the records that it reads: those of `readable` [num_records]."""

    def __init__(self, data: bytes, starts: _Ints, ends: _Ints) -> None:
        self._data, self._starts, self._ends = data, starts, ends
        chars = np.frombuffer(data + _PAD, np.uint8)
        length, self._body = _lengths(chars, starts + 1)
        is_whole = (chars[starts] == _PART) & (self._body + length == ends)
        self.readable: _Flags = is_whole & (ends - starts <= _MOST_BYTES)
        records = np.flatnonzero(self.readable)
        entries, bad = _parts(chars, self._body[records], ends[records])
        self.readable[records[bad]] = False
        entries = entries.of(records)

        good, name, name_end, kind, first = _split(chars, entries)
        self._names, codes = _codes(data, good, name, name_end)
        good &= codes < len(self._names)
        by_name = _order(codes)
        # In the order in which protobuf writes them if equal features must be equal bytes.
        order = by_name[_order(entries.owner[by_name])]
        is_same = (np.diff(entries.owner[order]) == 0) & (np.diff(codes[order]) == 0)
        good[order[1:][is_same]] = False

        count = np.where(kind == _FLOATS, (entries.last - first) // 4, 0)
        ints = np.flatnonzero(good & (kind == _INTS))
        count[ints], is_well = _count_ints(data, first[ints], entries.last[ints])
        good[ints[~is_well]] = False
        lists = np.flatnonzero(good & (kind == _BYTES))
        texts, bad = _parts(chars, first[lists], entries.last[lists])
        good[lists[bad]] = False
        texts = texts.of(lists)
        count[lists] = np.bincount(texts.owner, minlength=len(good))[lists]

        self.readable[entries.owner[~good]] = False
        is_kept = self.readable[entries.owner]
        self._entries, self._order = entries, order[is_kept[order]]
        by_name = by_name[is_kept[by_name]]
        self._code, self._kind, self._count = codes[by_name], kind[by_name], count[by_name]
        self._values = _Parts(entries.owner, entries.tag, first, entries.last).take(by_name)
        # The texts by name too: each stays at its place among those of its feature.
        num_texts = np.where(self._kind == _BYTES, self._count, 0)
        self._text_end = np.cumsum(num_texts)
        shift = np.zeros(len(good), np.int64)
        shift[by_name] = self._text_end - num_texts
        texts = texts.take(is_kept[texts.owner])
        is_first = np.diff(texts.owner, prepend=-1) != 0
        begins = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
        self._texts = texts.put(shift[texts.owner] + np.arange(len(begins)) - begins)

    def values(self, name: str) -> tuple[_Ints, list[Values]]:
        """Finds a feature's values by their kind.

        Returns:
          the places of the records that have the feature, maybe without a value, and the values.
        """
        code = self._names.get(name.encode(), len(self._names))
        begin, end = np.searchsorted(self._code, [code, code + 1])
        found = []
        for kind in (_BYTES, _FLOATS, _INTS):
            is_kind = (self._kind[begin:end] == kind) & (self._count[begin:end] > 0)
            chosen = begin + np.flatnonzero(is_kind)
            if len(chosen):
                flat = self._flat(kind, chosen)
                found.append(Values(self._values.owner[chosen], self._count[chosen], flat))
        return self._values.owner[begin:end], found

    def _flat(self, kind: int, chosen: _Ints) -> pa.Array:
        if kind == _BYTES:
            end = self._text_end[chosen[-1]]
            begin = self._text_end[chosen[0]] - self._count[chosen[0]]
            return _taken(self._data, self._texts.first[begin:end], self._texts.last[begin:end])
        parts = _taken(self._data, self._values.first[chosen], self._values.last[chosen])
        chars = _chars(parts)
        if kind == _INTS:
            return pa.array(_ints(chars))
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return pa.array(chars.view("<f4").astype(np.float64))

    def records(self) -> list[bytes]:
        """Returns the readable records, their features in one order, as protobuf writes them."""
        rows = np.flatnonzero(self.readable)
        starts, bodies, ends = (each[rows] for each in (self._starts, self._body, self._ends))
        if (np.diff(self._order) > 0).all():
            return [self._data[a:b] for a, b in zip(starts, ends, strict=True)]
        entries = self._entries
        whole = _taken(self._data, entries.tag, entries.last, self._order)
        chars = _chars(whole).tobytes()
        sizes = ends - bodies
        lasts = np.cumsum(sizes)
        places = zip(starts, bodies, lasts - sizes, lasts, strict=True)
        return [self._data[a:b] + chars[c:d] for a, b, c, d in places]


def _split(chars: _Chars, entries: _Parts) -> tuple[_Flags, _Ints, _Ints, _Ints, _Ints]:
    """Splits entries into a name and a list of values of one kind.

    Returns:
      of each entry: whether it is so, the range of the name, the kind (0: no values), and where the
      values begin, which end with the entry.
    """
    last = entries.last
    length, name = _lengths(chars, entries.first + 1)
    name_end = np.minimum(name + length, last)
    good = (chars[entries.first] == _PART) & (length > 0) & (chars[name_end] == _VALUE)
    length, at = _lengths(chars, name_end + 1)
    good &= at + length == last
    at = np.minimum(at, last)
    kind = np.where(at < last, chars[at] >> 3, 0).astype(np.int64)
    good &= (at == last) | (chars[at] & 7 == 2) & (kind >= _BYTES) & (kind <= _INTS)
    length, first = _lengths(chars, np.minimum(at + 1, last))
    good &= (at == last) | (first + length == last)
    first = np.where(good & (at < last), first, last)
    # Numbers are packed.
    is_packed = (kind >= _FLOATS) & (first < last)
    length, packed = _lengths(chars, np.minimum(first + 1, last))
    is_well = (chars[first] == _PART) & (packed + length == last) & (length > 0)
    good &= ~is_packed | is_well & ((kind == _INTS) | (length % 4 == 0))
    return good, name, name_end, kind, np.where(good & is_packed, packed, first)


def _codes(
    data: bytes, good: _Flags, name: _Ints, name_end: _Ints
) -> tuple[dict[bytes, int], _Ints]:
    """Numbers the names in protobuf's order; one that is bad or not UTF-8 has their number."""
    encoded = _taken(data, name[good], name_end[good]).dictionary_encode()
    found = encoded.dictionary.to_pylist()
    key = _longer_first if is_longer_first() else None
    names = sorted((each for each in found if _is_utf8(each)), key=key)
    numbers = {each: number for number, each in enumerate(names)}
    of_found = np.array([numbers.get(each, len(names)) for each in found], np.int64)
    codes = np.full(len(good), len(names))
    codes[good] = of_found[encoded.indices.to_numpy(zero_copy_only=False)]
    return numbers, codes


def _longer_first(name: bytes) -> bytes:
    return name + b"\xff"  # which UTF-8 does not have


def _order(numbers: _Ints) -> _Ints:
    """Sorts numbers of 0 or more, equal ones in order; fast if they are small."""
    is_small = int(numbers.max(initial=0)) < 1 << 16
    return np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable")


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _lengths(chars: _Chars, at: _Ints) -> tuple[_Ints, _Ints]:
    """Reads a length at each place, or _FAR if it is not in its shortest form, and its end."""
    value, end = chars[at].astype(np.int64), at + 1
    more = np.flatnonzero(value > 127)
    for shift in (7, 14, 21):
        if not len(more):
            return value, end
        byte = chars[end[more]].astype(np.int64)
        value[more] += (byte - 1) << shift  # and takes the mark of more away
        end[more] += 1
        value[more[byte == 0]] = _FAR
        more = more[byte > 127]
    value[more] = _FAR
    return value, end


def _parts(chars: _Chars, at: _Ints, end: _Ints) -> tuple[_Parts, _Ints]:
    """Finds the parts, each a tag and a length with its bytes, that ranges consist of.

    Returns:
      the parts by range, and the ranges that are not so or have more parts than the others.
    """
    owner = np.flatnonzero(at < end)
    at, end = at[owner], end[owner]
    found: list[tuple[_Ints, ...]] = []
    bad = []
    while len(owner) >= LEAST_AT_ONCE:
        length, first = _lengths(chars, at + 1)
        last = first + length
        good = (chars[at] == _PART) & (last <= end)
        found.append((owner[good], at[good], first[good], last[good]))
        bad.append(owner[~good])
        going = good & (last < end)
        owner, at, end = owner[going], last[going], end[going]
    declined = np.concatenate([*bad, owner])
    if not found:
        return _Parts(*(np.zeros((4, 0), np.int64))), declined
    parts = _Parts(*(np.concatenate(each) for each in zip(*found, strict=True)))
    step = np.repeat(np.arange(len(found)), [len(each) for each, *_ in found])
    ends = np.cumsum(np.bincount(parts.owner))
    before = np.concatenate([[0], ends])
    return parts.put(before[parts.owner] + step), declined


def _taken(data: bytes, starts: _Ints, ends: _Ints, order: _Ints | None = None) -> pa.Array:
    """Copies ranges, which ascend, to an array of bytes, in an order of them."""
    if not len(starts):
        return pa.array([], pa.binary())
    # Each is an element of the data, and so is what lies between two.
    offsets = np.stack([starts, ends], 1).astype(np.int32).ravel()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    whole = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return whole.take(pa.array(2 * (np.arange(len(starts)) if order is None else order)))


def _chars(array: pa.Array) -> _Chars:
    """Returns the bytes of a whole array of bytes."""
    buffer = array.buffers()[2]
    size = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)[-1] if len(array) else 0
    return np.frombuffer(buffer or b"", np.uint8, size)


def _count_ints(data: bytes, starts: _Ints, ends: _Ints) -> tuple[_Ints, _Flags]:
    """Counts the integers of each range, and tells which ranges have only those well written."""
    chars = _chars(_taken(data, starts, ends))
    ends = np.cumsum(ends - starts)
    is_last = chars < 128
    count = np.concatenate([[0], np.cumsum(is_last)])
    starts = ends - np.diff(ends, prepend=0)
    good = is_last[ends - 1]
    lasts = np.flatnonzero(is_last)
    digits = np.diff(lasts, prepend=-1)
    top = chars[lasts]
    is_bad = (digits > 1) & (top == 0) | (digits > _MOST_DIGITS)
    is_bad |= (digits == _MOST_DIGITS) & (top > 1)
    good[np.searchsorted(ends, lasts[is_bad], side="right")] = False
    return count[ends] - count[starts], good


def _ints(chars: _Chars) -> _Ints:
    """Reads integers that are written one after the other."""
    lasts = np.flatnonzero(chars < 128)
    firsts = np.concatenate([[0], lasts[:-1] + 1])
    digits = lasts - firsts
    values = (chars[firsts] & 127).astype(np.uint64)
    for digit in range(1, int(digits.max(initial=0)) + 1):
        more = np.flatnonzero(digits >= digit)
        byte = (chars[firsts[more] + digit] & 127).astype(np.uint64)
        values[more] |= byte << np.uint64(7 * digit)
    return np.asarray(values.view(np.int64))
