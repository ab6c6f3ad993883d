"""One packet twice in hexadecimal, side by side: as a tenant sent it, and as the fabric saw it. For `ztdpu demo`."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.text import Text

_GAP: Final = "   "
_WIDE_COLUMNS: Final = 112
_ICV_OCTETS: Final = 16
_CLEAR_PARTS: Final = ((20, "IP", "cyan"), (8, "UDP", "blue"))
_OUTER_PART: Final = (20, "outer IP", "cyan")
_PSP_PART: Final = (16, "PSP: SPI, IV", "yellow")

Part = tuple[int, str, str]
"""Octets, what they are, colour."""


def print_side_by_side(clear: bytes, sealed: bytes) -> None:
    """Print both on stdout; coloured on a terminal, as wide as it is."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    is_wide = sys.stdout.isatty() and shutil.get_terminal_size().columns >= _WIDE_COLUMNS
    for line in lines_of(clear, sealed, octets_a_row=12 if is_wide else 8):
        console.print(line)


def lines_of(clear: bytes, sealed: bytes, *, octets_a_row: int) -> list[Text]:
    """Return title, rows and legend. Both are IPv4 outside, as the demo's packets are."""
    from rich.text import Text

    outer = (_OUTER_PART, (8, f"UDP {int.from_bytes(sealed[22:24], 'big')}", "blue"), _PSP_PART)
    parts = [
        (*_CLEAR_PARTS, (len(clear) - 28, "what blue-0 wrote", "bold red")),
        (*outer, (len(sealed) - 44 - _ICV_OCTETS, "sealed", "green"), (_ICV_OCTETS, "tag", "magenta")),
    ]
    left, right = (_dump(octets, one, octets_a_row) for octets, one in zip((clear, sealed), parts, strict=True))
    width = max(len(row) for row in left)
    title = Text("blue-0 sent this".ljust(width) + _GAP + "and the wire saw this", "bold")
    rows = [title]
    for number in range(max(len(left), len(right))):
        row = left[number].copy() if number < len(left) else Text()
        row.pad_right(width - len(row))
        rows.append(row + Text(_GAP) + right[number] if number < len(right) else row)
    return [*rows, *(_legend(one) for one in parts)]


def _dump(octets: bytes, parts: tuple[Part, ...], octets_a_row: int) -> list[Text]:
    from rich.text import Text

    colours = [colour for length, _, colour in parts for _ in range(length)]
    rows = []
    for start in range(0, len(octets), octets_a_row):
        row, letters = Text(f"{start:02x} ", "dim"), Text("  ")
        shown = range(start, min(start + octets_a_row, len(octets)))
        for position in shown:
            octet = octets[position]
            row.append(f" {octet:02x}", colours[position])
            letters.append(chr(octet) if 32 <= octet < 127 else ".", colours[position])
        row.append("   " * (octets_a_row - len(shown)))
        rows.append(row + letters)
    return rows


def _legend(parts: tuple[Part, ...]) -> Text:
    from rich.text import Text

    legend, start = Text("  "), 0
    for length, name, colour in parts:
        legend.append(f"{start:02x}-{start + length - 1:02x} ", "dim")
        legend.append(f"{name}  ", colour)
        start += length
    legend.rstrip()
    return legend
