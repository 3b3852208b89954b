"""Memory that large messages leave."""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of these options
_KEPT_BYTES: Final = 128 << 20  # of each arena, at its end
_MAX_MMAP_THRESHOLD: Final = 32 << 20  # more is refused


def keep() -> bool:
    """Lets malloc keep memory that is free again; tells whether it does, as glibc's can.

    gRPC copies a message while no other request is worked on. To get the memory for it from the
    system took several times as long as the copy.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD))
    return all(mallopt(option, value) == 1 for option, value in options)
