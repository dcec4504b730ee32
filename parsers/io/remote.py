"""Files in a store (S3, GCS, HDFS) by URI, through pyarrow.fs: the only use of the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import IO, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from traceflops.errors import InputError
from traceflops.parsers.io.inputs import reason

T = TypeVar("T")
_VARIABLES: Final = {
    "s3": "AWS_ENDPOINT_URL for a store of your own",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hdfs": "JAVA_HOME, HADOOP_HOME, CLASSPATH",
}

_PATIENCE_S: Final = 10
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def is_remote(path: str) -> bool:
    """Return whether a path is the URI of a file or folder in a store."""
    return path.startswith(("s3://", "gs://", "hdfs://"))


def files_at(uri: str) -> Iterator[str]:
    """Yield the URI of a file, of all files in a folder, or of all that match a URI with *.

    Hidden files are left out. Raises InputError if there is no such file, or the store fails.
    """
    uri = uri.rstrip("/")
    store, path = _store_and_path(uri)
    folder = path.partition("*")[0].rpartition("/")[0] if "*" in path else path
    info = _tried(uri, lambda: store.get_file_info(folder or "/"))
    if info.type.name == "File":
        yield uri
        return
    if info.type.name == "NotFound":
        raise _missing(uri)
    from pyarrow.fs import FileSelector

    selector = FileSelector(folder or "/", recursive=True)
    files = _tried(uri, lambda: store.get_file_info(selector))
    uri_of_folder = uri[: len(uri) - len(path) + len(folder)]
    for name in sorted(file.path for file in files if file.is_file):
        inner = name[len(folder) :]
        is_hidden = any(part.startswith(".") for part in PurePosixPath(inner).parts)
        pattern = PurePosixPath("/", path)  # paths of HDFS begin with a slash, others do not
        if not is_hidden and ("*" not in path or PurePosixPath("/", name).match(str(pattern))):
            yield uri_of_folder + inner


def opened(uri: str) -> IO[bytes]:
    """Return an open, seekable file of a store. Raises InputError if it cannot be opened."""
    store, path = _store_and_path(uri)
    return cast(IO[bytes], _tried(uri, lambda: store.open_input_file(path)))


def size_of(uri: str) -> int:
    """Return the size in bytes of a file of a store."""
    store, path = _store_and_path(uri)
    size = _tried(uri, lambda: store.get_file_info(path)).size
    if size is None:
        raise _missing(uri)
    return cast(int, size)


def _store_and_path(uri: str) -> tuple[Any, str]:
    """Return the store of a URI and the path in it. Raises InputError if it has a password."""
    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.partition("/")
    if ":" in authority.rpartition("@")[0] or not authority:
        hint = "set credentials in the environment, as AWS_ACCESS_KEY_ID"
        raise InputError(f"a URI with a password, or without a name: {scheme}://…/{path}", hint)
    store, root = _tried(uri, lambda: _store(f"{scheme}://{authority}/"))
    return store, f"{root}/{path}" if path else root


@cache
def _store(start: str) -> tuple[Any, str]:
    """Return the store of URIs that begin with `start`, and the path of its root."""
    from pyarrow import fs

    if not start.startswith("s3://"):
        # Of these clients only Google's (gs://) would try for long, and has an option for it.
        store, root = fs.FileSystem.from_uri(
            start + (f"?retry_limit_seconds={_PATIENCE_S}" if start[0] == "g" else "")
        )
        return store, root.rstrip("/")
    bucket = start[len("s3://") : -1]
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    is_configured = endpoint or any(map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION")))
    store = fs.S3FileSystem(
        connect_timeout=_PATIENCE_S,
        request_timeout=_PATIENCE_S,
        region=None if is_configured else fs.resolve_s3_region(bucket),
        scheme=urlsplit(endpoint).scheme or None,
        endpoint_override=urlsplit(endpoint).netloc or None,
    )
    return store, bucket


def _missing(uri: str) -> InputError:
    return InputError(f"no such file: {uri}", "check the path, and that it may be listed")


def _tried(uri: str, action: Callable[[], T]) -> T:
    """Return the result of an action on a store. Raises InputError if it fails."""
    import pyarrow as pa

    try:
        return action()
    except FileNotFoundError:
        raise _missing(uri) from None
    except (ImportError, NotImplementedError) as error:
        raise InputError(
            f"cannot read: {uri} (pyarrow was built without it: {reason(error)})",
            "install pyarrow from PyPI or conda-forge",
        ) from None
    except (OSError, pa.ArrowException) as error:
        variables = _VARIABLES[uri.partition("://")[0]]
        hint = f"check name, network and credentials ({variables})"
        raise InputError(f"cannot read: {uri} ({reason(error)})", hint) from None
