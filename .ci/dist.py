"""Builds the sdist and of it the wheel: python .ci/dist.py FOLDER [OPTION of build...].

Both have the same bytes each time. setuptools makes a wheel so where SOURCE_DATE_EPOCH is set
(here, if it is not, to the time of the last commit), but writes into an sdist the time of today,
and times, owners and modes of this copy. So the sdist is packed again without them.
"""

import gzip
import os
import subprocess
import sys
import tarfile
from pathlib import Path


def epoch() -> str:
    """Return the one time of all files: as the environment says, or of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or subprocess.check_output(["git", "log", "-1", "--format=%ct"], text=True).strip()


def packed_again(sdist: Path, seconds: int) -> None:
    """Replace an sdist by one that depends on nothing but the names and content of its files."""
    packed = sdist.with_suffix(".new")
    with (
        tarfile.open(sdist) as old,
        packed.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            again = tarfile.TarInfo(member.name)
            again.type, again.size, again.mtime = member.type, member.size, seconds
            again.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(again, old.extractfile(member) if member.isfile() else None)
    packed.replace(sdist)


def main(folder: str, *options: str) -> None:
    """Build both into a folder that has neither."""
    os.umask(0o022)
    os.environ["SOURCE_DATE_EPOCH"] = epoch()
    build = [sys.executable, "-m", "build", "--outdir", folder, *options]
    subprocess.run([*build, "--sdist"], check=True)
    (sdist,) = Path(folder).glob("*.tar.gz")
    packed_again(sdist, int(epoch()))
    subprocess.run([*build, "--wheel", str(sdist)], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
