"""`traceflops unpack`: the tables in a pack. It is `export`, by the name that is looked for."""

from traceflops.cli.export import export as unpack

__all__ = ["unpack"]

HELP = "Write the tables in a pack as Parquet, Arrow or CSV."
EXAMPLES = (
    "traceflops unpack job.tfpack -o tables/",
    "traceflops unpack job.tfpack --table activities --format csv -o tables/",
)
