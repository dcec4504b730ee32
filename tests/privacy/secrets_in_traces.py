"""Random secrets of an author, and traces that have them in every field that can hold a text."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from traceflops.table.columns import NAME_TYPE, dictionary_column
from traceflops.table.schema import TABLES, arrow_schema
from traceflops.table.trace import Note, Source, SourceFile, Trace


class Secrets:
    """Gives secrets, none of them twice, and remembers what must not be seen of each."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.given: list[str] = []

    def __call__(self) -> str:
        """Return a secret of one of the kinds that names have."""
        kinds = (
            self._word,
            self._numbered,
            self._ipv4,
            self._ipv6,
            self._mail,
            self._host,
            self._path,
            self._foreign,
            self._number,
        )
        return kinds[len(self.given) % len(kinds)]()

    def no_number(self) -> str:
        """Return a secret for a place in which numbers are sizes or counts."""
        return self._mail() if len(self.given) % 2 else self._word()

    def word(self) -> str:
        """Return a secret of small letters."""
        return self._word().lower()

    def _keep(self, text: str, *seen: str) -> str:
        self.given += seen or (text,)
        return text

    def _letters(self, number: int, of: str = string.ascii_letters) -> str:
        return "".join(self._random.choices(of, k=number))

    def _word(self) -> str:
        # No run of small letters is a word that libraries use: all of them have a q and a j.
        made = f"{self._letters(3)}qJ{self._letters(4)}jQ{self._letters(2)}"
        return self._keep(made)

    def _numbered(self) -> str:
        number = self._random.randrange(10_000, 100_000)
        return self._keep(f"{self._letters(1)}{number}{self._letters(1, 'ABCDEFGHJKNOPQRSTVWYZ')}")

    def _ipv4(self) -> str:
        # Three digits each, so that they are no version and no fraction by chance.
        parts = [str(self._random.randrange(100, 256)) for _ in range(4)]
        return self._keep(
            f"{'.'.join(parts)}:{self._random.randrange(10_000, 60_000)}", *[".".join(parts)]
        )

    def _ipv6(self) -> str:
        parts = [f"{self._random.randrange(0x1000, 0x10000):x}" for _ in range(3)]
        return self._keep(f"fd{self._letters(2, 'abcdef')}:{':'.join(parts)}::7", ":".join(parts))

    def _mail(self) -> str:
        made = self._letters(7, string.ascii_lowercase)
        return self._keep(f"node@{made}qj.com", f"{made}qj", "node@")

    def _host(self) -> str:
        number = self._random.randrange(1_000, 10_000)
        return self._keep(f"gpu-node-{number}", f"node-{number}")

    def _path(self) -> str:
        made = self._letters(8, string.ascii_lowercase)
        return self._keep(f"/data/jq{made}/torch/qj{made}.py", f"jq{made}", f"qj{made}")

    def _foreign(self) -> str:
        return self._keep(f"Straße{self._letters(5)}ß\u5bc6\u94a5")

    def _number(self) -> str:
        return self._keep(str(self._random.randrange(10**11, 10**12)))


def trace_of_secrets(seed: int) -> tuple[Trace, Secrets]:
    """Return a trace with a secret in each text of each table and beside the tables."""
    secret = Secrets(seed)
    tables = {name: _table(name, secret) for name in TABLES}
    source = Source(
        format="pytorch",
        files=(SourceFile(f"{secret()}.json", 1, 1), SourceFile(secret(), None, None)),
        tool=f"profiler {secret()}",
        clock=secret(),
        facts={secret(): secret(), "version": secret()},
        event_counts={secret(): 3, f"kernel {secret()}": 4},
        identities=(secret(), secret()),
        description={
            secret(): 1,
            "dtype": secret(),
            "model": {"model_type": secret(), secret(): [1, secret(), {secret(): secret()}]},
            "documents": [secret(), 3],
        },
    )
    notes = (
        Note("dropped", "unknown-category", f"Not read: {secret()}.", 1, secret()),
        Note(
            "assumed",
            "plain",
            f"The value {secret.no_number()} of '{secret()}' was left out.",
            1,
            None,
        ),
        Note(
            "repaired",
            "other",
            f"{secret.no_number()}: no such file (of {secret.no_number()})",
            None,
            secret(),
        ),
    )
    return Trace(source, tables, notes, places=(secret(),)), secret


def _table(name: str, secret: Secrets) -> pa.Table:
    rows, columns = 6, []
    kinds = {
        "activities": ["kernel", "memcpy", "op"],
        "marks": ["annotation", "gpu_annotation", "gpu_step", "python", "module", "system", "sync"],
        "totals": ["kernel", "memcpy", "call", "mark", "gpu_mark", "memset"],
    }
    for column in TABLES[name]:
        if column.type == NAME_TYPE:
            given = kinds.get(name, []) if column.name == "kind" else []
            sized = column.name in ("input_dims", "input_strides")
            made = secret.no_number if sized else secret
            texts = given or [made() for _ in range(rows)]
            codes = np.arange(rows) % len(texts)
            columns.append(dictionary_column(codes, texts))
        elif pa.types.is_fixed_size_list(column.type):
            columns.append(pa.array([[1, 1, 1]] * rows, column.type))
        else:
            columns.append(pa.array([0] * rows, pa.int64()).cast(column.type))
    return pa.Table.from_arrays(columns, schema=arrow_schema(name))


class Texts(Protocol):
    """Gives texts for the fields of a trace."""

    def __call__(self) -> str:
        """Return a text for any field."""

    def word(self) -> str:
        """Return a text for a part of a name."""

    def no_number(self) -> str:
        """Return a text that is no number."""


def document_of_secrets(seed: int) -> tuple[dict[str, Any], Secrets]:
    """Return a PyTorch trace with a secret in each text, of which four steps can be found."""
    secret = Secrets(seed)
    return document_of(secret), secret


def document_of(secret: Texts) -> dict[str, Any]:
    """Return a PyTorch trace with a given text in each field, of which four steps are marked."""
    events = [one for step in range(4) for one in _step(step, secret)]
    head = {
        "schemaVersion": 1,
        "host_name": secret.word(),
        "username": secret.word(),
        "traceName": f"/home/{secret.word()}/{secret()}.json",
        "environment": {"TOKEN": secret(), secret(): secret()},
        "cmdline": f"python {secret()} --key={secret()}",
        secret(): {secret(): secret()},
        "PYTORCH_VERSION": secret(),
        "deviceProperties": [
            {"id": 0, "name": f"NVIDIA A100 {secret()}", "totalGlobalMem": 85 * 10**9}
        ],
        "distributedInfo": {
            "backend": secret(),
            "rank": 0,
            "world_size": 1,
            "pg_config": [{"pg_name": secret(), "pg_desc": secret(), "backend_config": secret()}],
            "nccl_version": secret(),
        },
        "traceflops": {"gpus": 1, "model": secret(), secret(): secret(), "dtype": secret()},
    }
    return {**head, "traceEvents": events}


def _step(step: int, secret: Texts) -> Iterator[dict[str, Any]]:
    at, number = 10_000 * step, 100 * step
    yield _event("user_annotation", f"ProfilerStep#{step}", at, 9_000)
    yield _event("user_annotation", secret(), at + 1, 20)
    yield _event("gpu_user_annotation", secret(), at + 1, 20, device=0, stream=7)
    yield _event("python_function", f"{secret()}(12): {secret()}", at + 2, 30)
    yield _event(
        "python_function", f"torch/{secret.word()}/model.py(3): {secret.word()}", at + 3, 9
    )
    yield _event("python_function", f"nn.Module: {secret.word()}_3", at + 3, 25)
    yield _event(secret(), secret(), at + 5, 5, **{secret(): secret()})
    arguments = {
        "Input Dims": [[4, 4], [4, 4]],
        "Input type": [secret(), "float"],
        "Concrete Inputs": [secret(), "2"],
        "Input Strides": [[4, 1], secret.no_number()],
        "Collective name": secret(),
        "Process Group Name": secret(),
        "Process Group Ranks": f"[0, {secret()}]",
        "Process Group Description": secret(),
        "dtype": secret(),
        "In msg nelems": 4,
        "kernel_file": secret(),
        "kernel_hash": secret(),
        secret(): secret(),
    }
    yield _event("cpu_op", f"{secret.word()}::{secret()}", at + 40, 90, **arguments, **_id(step))
    for place in range(9):
        linked = {"correlation": number + place + 1, **_id(step)}
        yield _event("cuda_runtime", "cudaLaunchKernel", at + 50 + place, 1, **linked)
        name = f"void {secret()}<{secret()}, 128>({secret()}*)"
        start = at + 300 + 100 * place
        yield _event("kernel", name, start, 90, device=0, stream=7, **linked, **arguments)
    yield _event("cuda_runtime", secret(), at + 1_400, 5)
    yield {
        "ph": "i", "cat": "cpu_instant_event", "name": secret(), "ts": at + 7, "pid": 9, "tid": 9,
        "s": "t", "args": {secret(): secret()},
    }  # fmt: skip
    yield {"ph": "M", "name": "process_name", "pid": 9, "ts": 0, "args": {"name": secret()}}
    yield {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": secret()}}


def _id(step: int) -> dict[str, Any]:
    return {"External id": step + 1}


def _event(category: str, name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    on_device = category in ("kernel", "gpu_memcpy", "gpu_user_annotation")
    place = {"pid": 0, "tid": 7} if on_device else {"pid": 9, "tid": 9}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args, **place}


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a document as a profiler would."""
    path.write_text(json.dumps(document), encoding="utf-8")
