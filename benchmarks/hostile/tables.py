"""Compares what attacks cost with what their harmless twins do, and lays it out."""

from __future__ import annotations

from typing import Any

HEADS = (
    "attack",
    "bytes",
    "CPU s",
    "/ harmless",
    "peak MB",
    "/ harmless",
    "others' p99 ms",
    "/ quiet",
    "harmless p99 / quiet",
    "what came",
)


def ratios(found: dict[str, Any]) -> dict[str, float | None]:
    """Compares an attack with its twin, and the others' latencies with quiet ones.

    A ratio is None if one of both is none: the process died, or nobody was answered.
    """
    harmless, hostile = found["harmless"], found["hostile"]
    survived = hostile["ended_with"] == (None if "quiet" in found else 0)

    def ratio(above: float | None, below: float | None, least: float) -> float | None:
        if above is None or below is None:
            return None
        return round(max(above, least) / max(below, least), 2)

    made = {
        # What is less than these costs nothing that could be measured.
        "cpu": ratio(hostile["cpu_secs"], harmless["cpu_secs"], 0.01) if survived else None,
        "peak": ratio(hostile["peak_bytes"], harmless["peak_bytes"], 1e6) if survived else None,
    }
    if "quiet" in found:
        quiet = found["quiet"]["p99_ms"]
        made["p99"] = ratio(hostile["p99_ms"], quiet, 0.1)
        made["harmless_p99"] = ratio(harmless["p99_ms"], quiet, 0.1)
    return made


def rows(results: dict[str, Any]) -> list[list[str]]:
    """Lays the results out: a row per attack, for `HEADS`."""
    return [
        [
            name,
            f"{case['sent_bytes']:,}",
            f"{case['hostile']['cpu_secs']:.2f}",
            _shown(case["ratios"]["cpu"]),
            f"{case['hostile']['peak_bytes'] / 1e6:,.0f}",
            _shown(case["ratios"]["peak"]),
            *_latencies(case),
            outcome(case["hostile"], is_server="quiet" in case),
        ]
        for name, case in results.items()
    ]


def _latencies(case: dict[str, Any]) -> list[str]:
    if "quiet" not in case:
        return ["", "", ""]
    ratios = case["ratios"]
    return [_shown(x) for x in (case["hostile"]["p99_ms"], ratios["p99"], ratios["harmless_p99"])]


def outcome(hostile: dict[str, Any], *, is_server: bool) -> str:
    """Tells in a few words what came of an attack."""
    ended = hostile["ended_with"]
    parts = [hostile["said"][:80]] if hostile["said"] else []
    if is_server:
        parts += [] if ended is None else [f"the server died ({ended})"]
        if hostile["probes_failed"]:
            parts.append(f"{hostile['probes_failed']} of {hostile['probes']} new connections fail")
        if hostile["failed"]:
            parts.append(f"{hostile['failed']} others' requests fail")
    elif ended is None:
        parts.append("never ends")
    elif ended:
        parts.append(f"died ({ended})")
    return "; ".join(parts)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:,.1f}"
