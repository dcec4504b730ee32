"""Summaries of files by the workers of a Dask cluster (extra `cluster`)."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from traceback import clear_frames
from typing import Any, Final

from traceflops.analysis.summary_files import encoded
from traceflops.errors import UsageError, is_out_of_memory, lacks

_LOCAL: Final = "local"
_TIMEOUT_S: Final = 5.0
_SETTINGS: Final[dict[str, Any]] = {
    # A file is given up when two workers died of it: a single one may have died by chance.
    "distributed.scheduler.allowed-failures": 1,
    # A worker gets one file at a time, so when one dies it is known by which file.
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Of a cluster on this machine: worker processes without their web pages."""


def on_dask(
    work: Callable[[tuple[str, ...]], bytes],
    sets: Sequence[tuple[str, ...]],
    address: str,
    jobs: int | None,
) -> Iterator[bytes]:
    """Yield the summary of each set of files; of files that kill their worker only the names.

    `address` is a scheduler, or "local" for `jobs` processes of this machine. Raises UsageError if
    no cluster answers or the connection is lost.
    """
    try:
        from dask import config
        from distributed import CancelledError, Client, KilledWorker, LocalCluster
        from distributed.comm.core import CommClosedError
    except ImportError as error:
        install = "pip install 'traceflops[cluster]'"
        raise lacks(error, "--dask needs the package distributed", install) from None
    with ExitStack() as stack:
        # Dask's problems are told by our errors and notes.
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        try:
            cluster: Any = address
            if address == _LOCAL:
                stack.enter_context(config.set(_SETTINGS))
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=jobs,
                        threads_per_worker=1,
                        dashboard_address="127.0.0.1:0",
                        scheduler_kwargs={"dashboard": False},
                        silence_logs=logging.CRITICAL,
                    )
                )
            client = stack.enter_context(Client(cluster, timeout=_TIMEOUT_S))
        except Exception as error:  # its type depends on the protocol and on who answers
            if address == _LOCAL and is_out_of_memory(error):  # no fault of an address
                raise
            # Free the client that never connected now: later it would block another one.
            clear_frames(error.__traceback__)
            gc.collect()
            hint = "give the address of a running scheduler, e.g. tcp://host:8786, or local"
            raise UsageError(f"no cluster at {address} ({error})", hint) from None
        # pure=False: the files may have changed since the scheduler kept a result for these names.
        for files, future in zip(sets, client.map(work, sets, pure=False), strict=True):
            try:
                yield future.result()
            except KilledWorker:
                yield encoded("\n".join(Path(file).name for file in files))
            except (CancelledError, CommClosedError):
                hint = "see what its scheduler says, then run this again"
                raise UsageError(f"the cluster at {address} was lost", hint) from None
