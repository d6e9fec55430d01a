"""Draws lines into an SVG picture: one for each kind, with its name at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 360
LEFT, TOP, RIGHT, BOTTOM = 60, 30, 230, 40  # margins
COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7d4e9f", "#b8860b", "#444444")
STEPS = (1, 2, 5)  # times a power of ten: distances of marks on an axis


def plot(lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """``lines``: for each name, its points (flushes, CPU-ms)."""
    points = [point for line in lines.values() for point in line]
    most_x, most_y = max(x for x, _ in points), max(y for _, y in points)
    every = _distance(most_y)
    top = every * (int(most_y / every) + 1)

    def at(x: float, y: float) -> tuple[float, float]:
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return round(LEFT + across * x / most_x, 1), round(HEIGHT - BOTTOM - down * y / top, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        '<g font-size="12">',
        f'<text x="{LEFT}" y="{TOP - 12}">CPU-ms of a flush of 200 operations</text>',
    ]
    for number in range(int(top / every) + 1):
        x, y = at(0, number * every)
        parts.append(f'<path d="M{x} {y}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{number * every:g}</text>')
    x, y = at(most_x, 0)
    parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="end">{most_x:,} flushes</text>')
    for (name, line), color in zip(lines.items(), COLORS, strict=False):
        path = " ".join(",".join(map(str, at(*point))) for point in line)
        x, y = at(*line[-1])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 8}" y="{y + 4}" fill="{color}">{escape(name)}</text>')
    return "\n".join([*parts, "</g></svg>"]) + "\n"


def _distance(most: float) -> float:
    """Between two marks, so that there are four to ten."""
    power = 10.0 ** len(str(int(most)))
    while most / power < 4:
        for step in reversed(STEPS):
            if most / (power / 10 * step) >= 4:
                return power / 10 * step
        power /= 10
    return power
