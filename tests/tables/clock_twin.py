"""The event clock in plain Python: how old a step is in the time of its events."""

import bisect
import statistics
from collections.abc import Sequence


class ClockTwin:
    """Says the clock's time of each unit, and which steps are too old.

    A unit's time on the clock is the greatest median so far of nine units' times. The units before
    the clock begins count as the first unit that has a time.
    """

    def __init__(self, first_steps: Sequence[int], times_ms: Sequence[int]) -> None:
        self.first_steps = list(first_steps)
        medians = [
            statistics.median_low(times_ms[max(0, last - 9) : last])
            for last in range(5, len(times_ms) + 1)
        ]
        clock = [max(medians[: i + 1]) for i in range(len(medians))]
        self.clock = clock[:1] * 4 + clock

    def is_older(self, step: int, ttl_secs: int, units_done: int) -> bool:
        """Whether the clock has advanced by more than a time to live since a step."""
        if units_done < 5:
            return False
        unit = bisect.bisect_right(self.first_steps, step) - 1
        now = self.clock[min(units_done, len(self.clock)) - 1]
        return self.clock[unit] < now - 1000 * ttl_secs
