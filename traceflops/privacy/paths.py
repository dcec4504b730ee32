"""Absolute paths in texts of a trace: what is told to be one, and what is left of it.

A path leads to people, projects and machines; its last part says which file it was. What only looks
like a path stays: units (`tokens/s`), relative paths, URLs, `operator/`, names of layers that begin
with a slash (`/model/layers.0/MatMul`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from traceflops.privacy.library_words import is_library_word, words_of

_NO_PART: Final = r"/\\\s\"'`<>:|*?,;()\[\]{}"
_PART: Final = rf"[^{_NO_PART}]+"
_BEFORE: Final = r"(?:(?<![\w.~/\\)\]}>%…-])|(?<=\s-[IL])|(?<=^-[IL]))"
_POSIX: Final = rf"{_BEFORE}(?:file:/{{0,2}})?/{_PART}(?:/+{_PART})+(?: {_PART}(?:/+{_PART})+)*/?"
_OF_HOME: Final = rf"(?<![\w.~/\\)\]}}>])~[\w.-]*(?:[/\\]+{_PART})+[/\\]?"
_DRIVE: Final = rf"(?<!\w)[A-Za-z]:[\\/]+(?:[^{_NO_PART}](?:[^{_NO_PART}]| )*[\\/]+)*{_PART}[\\/]?"
_SHARE: Final = rf"(?<![\w\\/])\\\\+{_PART}(?:\\+{_PART})+\\*"
_PATH: Final = re.compile(f"{_DRIVE}|{_SHARE}|{_OF_HOME}|{_POSIX}")
_FRAME: Final = re.compile(
    r"(?:/|~[\w.-]*[/\\]|[A-Za-z]:[\\/]|\\\\)(?:[^\n]*?[/\\])??(?=[^/\\\n]+\(\d+\): )"
)
"""The folders of a Python function's file, whatever signs are in their names."""
_PACKAGES: Final = re.compile(
    r".*[/\\](?:site-packages|dist-packages|lib[/\\]python[0-9.]*)[/\\]|"
    r".*[/\\](?=torch[/\\](?:nn|utils|autograd|optim|distributed|fx|ao|cuda|jit|amp|func|onnx|"
    r"profiler|export|compiler|multiprocessing|testing|_[a-z]\w*)[/\\.])",
    re.IGNORECASE,
)
"""What is behind these folders is a library's own path, the same on every machine."""
_FILE: Final = re.compile(r"\.\w{1,8}(?= )")
_SEPARATOR: Final = re.compile(r"[/\\]+")
_FOLDERS: Final = """
afs app apps archive bin boot build builds cache ceph cluster code content cvmfs data data1 data2
dataset datasets dev disk disk1 efs etc export exports external fs fsx global gpfs gpfs1 group
groups home homes host hpc include install jobs lib lib64 local lustre media mnt mount net network
nfs nobackup opt orcd people persist pfs private proc project projects raid repo repos root run
scratch share shared shares snap software space src srv ssd storage store sys system team teams tmp
u user users usr var vol volume volumes wekafs work workdir workdirs workspace workspaces
"""
"""Folders at the root of file systems; below these there are no layers."""


def without_folders(text: str) -> str:
    """Return a text in which of each absolute path only its last part is left."""
    return _PATH.sub(lambda path: _last(path.group()), text)


def without_frame_folders(text: str) -> str:
    """Return a text without the folders of a Python function's file that it begins with."""
    found = _FRAME.match(text)
    return _own_path(found.group()) + text[found.end() :] if found is not None else text


def _own_path(folders: str) -> str:
    """Return what of the folders of a file is a library's own."""
    library = _PACKAGES.match(folders)
    return folders[library.end() :] if library is not None else ""


def _last(path: str) -> str:
    """Return what is left of a path. A blank is of a folder's name unless a file ends before it."""
    file = _FILE.search(path)
    if file is not None and path.startswith("/"):
        return _last(path[: file.end()]) + without_folders(path[file.end() :])
    if _is_layer(path):
        return path
    library = _PACKAGES.match(path)
    if library is not None and library.end() < len(path):
        return path[library.end() :]
    parts = [part for part in _SEPARATOR.split(path) if part]
    return parts[-1] if len(parts) > 1 or not path.startswith("~") else path


def _is_layer(path: str) -> bool:
    """Return whether it is the name of a layer, as exporters of graphs write them: `/conv/Add`."""
    if not path.startswith("/"):
        return False
    root, *_, last = [part for part in path.split("/") if part]
    known = last[:1].isupper() and "." not in last and all(map(is_library_word, words_of(last)))
    return known and root.lower() not in _folders()


@cache
def _folders() -> frozenset[str]:
    return frozenset(_FOLDERS.split())
