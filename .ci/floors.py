"""Prints the lowest versions that pyproject.toml declares, as constraints for pip."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirement in [*project["dependencies"], *project["optional-dependencies"]["test"]]:
    sys.stdout.write(re.sub(r">=([^,]+).*", r"==\1", requirement) + "\n")
