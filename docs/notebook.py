"""Runs docs/notebook.ipynb as Jupyter does, but without it: `python -m docs.notebook`.

What cells show is kept in the file, where readers see it without running anything.
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_suffix(".ipynb")


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook whose cells ran in order, with what they show."""
    ran, names = deepcopy(notebook), {"__name__": "__main__"}
    cells = [cell for cell in ran["cells"] if cell["cell_type"] == "code"]
    with chdir(PAGE.parent):
        for number, cell in enumerate(cells, 1):
            cell["execution_count"] = number
            cell["outputs"] = list(_shown("".join(cell["source"]), number, names))
    return ran


def _shown(source: str, number: int, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a cell prints, and the value of its last line."""
    tree, last = ast.parse(source), None
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(last, "<cell>", "eval"), names) if last is not None else None
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        yield {"name": "stdout", "output_type": "stream", "text": text}
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True)} | data
        yield {
            "data": data,
            "execution_count": number,
            "metadata": {},
            "output_type": "execute_result",
        }


def main() -> None:
    """Rewrite the notebook."""
    ran = executed(json.loads(PAGE.read_text(encoding="utf-8")))
    text = json.dumps(ran, indent=1, ensure_ascii=False)
    PAGE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
