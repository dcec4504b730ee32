"""Writes the golden page anew."""

from __future__ import annotations

from tests.reports.golden import GOLDEN, today

if __name__ == "__main__":
    GOLDEN.write_text(today(), encoding="utf-8")
    print(f"{GOLDEN}: rewritten; read what git shows as changed")
