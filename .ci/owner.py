"""Prints the places that name the repository's owner; with a name, writes it there.

python .ci/owner.py [NAME]. The owner of today is the one in pyproject.toml's address `Source`.
"""

import re
import sys
import tomllib
from pathlib import Path

SUFFIXES = {".md", ".toml", ".yml", ".cff", ".py"}
FOLDERS = (".", ".github", "action", "docs", "traceflops", "parsers", "reports")


def main(new: str = "") -> None:
    """Print `file:line: text` of each place, and replace the owner if there is a new one."""
    source = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    owner = re.match(r"https://github\.com/([\w-]+)/traceflops$", source["Source"])[1]
    for folder in map(Path, FOLDERS):
        for path in sorted(folder.glob("*" if folder == Path() else "**/*")):
            if path.suffix not in SUFFIXES:
                continue
            text = path.read_text(encoding="utf-8")
            address = re.compile(rf"\b{owner}/traceflops\b")
            for number, line in enumerate(text.splitlines(), 1):
                if address.search(line):
                    sys.stdout.write(f"{path}:{number}: {line.strip()}\n")
            if new:
                path.write_text(address.sub(f"{new}/traceflops", text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
