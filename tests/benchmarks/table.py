"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterator


class Table:
    """A table whose rows are printed as they come, since each takes its time to measure."""

    def __init__(self, *heads: str) -> None:
        self._heads = heads
        self.print(*heads)
        self.print(*("---" for _ in heads))

    def print(self, *cells: str) -> None:
        """Print a row."""
        assert len(cells) == len(self._heads)
        print(f"| {' | '.join(cells)} |", flush=True)


def legend(lines: Iterator[str] | list[str]) -> None:
    """Print what the columns of the table above mean."""
    print()
    for line in lines:
        print(f"* {line}")
