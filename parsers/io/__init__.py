"""Bytes to rows: files, archives, worker processes, JSON, CSV and SQLite; no tool is named here.

    path -> ByteSource                 places, remote, unpacking: files, archives, streams, stores
    ByteSource -> blocks of bytes
      JSON    -> EventStream, Document   lists in blocks, decoded by the workers of a Crew
      CSV     -> CsvText                 blocks of columns, by the header of each table
      SQLite  -> Database                batches of columns of its tables
      Arrow   -> ArrowTable              record batches, checked
      pickle  -> unpickled               plain values
      protobuf-> Messages                fields of many messages as columns

Damage never raises while anything can be read: one value, row or table is left out, reading goes
on behind it, and counts of what was mended, dropped or cut off become notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.io.arrow_files import (
        ARROW_UNREADABLE,
        ArrowTable,
        damaged_arrow,
        open_arrow,
        open_parquet,
        refuse_packed,
    )
    from traceflops.parsers.io.csv_cells import (
        Column,
        Field,
        Kind,
        Texts,
        clear_mark,
        decimal_mark,
        decimals,
        finest,
        is_ambiguous,
        is_number,
        plain_decimal,
        step_of,
    )
    from traceflops.parsers.io.csv_lines import Bytes, Damage, LineBlocks, line_starts
    from traceflops.parsers.io.csv_text import (
        TEXT_BLOCK_BYTES,
        CsvBlock,
        CsvText,
        Cut,
        Plan,
        Tables,
        find_start,
        header_in,
        text_notes,
    )
    from traceflops.parsers.io.database_file import how_to_copy, in_wal_mode, nothing_left, placed
    from traceflops.parsers.io.database_query import (
        Among,
        Batch,
        Between,
        Coder,
        Condition,
        Lookup,
        Present,
        Table,
        TextsById,
        Wanted,
        by_distinct,
        one_batch,
        quoted,
        select,
    )
    from traceflops.parsers.io.database_rows import Database
    from traceflops.parsers.io.database_scan import LONGEST_VALUE, NotFast, record_batches
    from traceflops.parsers.io.inputs import ByteSource
    from traceflops.parsers.io.json_blocks import JsonPart
    from traceflops.parsers.io.json_events import EventStream
    from traceflops.parsers.io.json_lists import Document
    from traceflops.parsers.io.json_mend import (
        INVALID_UTF8,
        event_text_notes,
        input_cut,
        mended,
        repairs_and_losses,
        valid_utf8,
    )
    from traceflops.parsers.io.json_shapes import SKIPPED, WHOLE, Elements, Members, Records
    from traceflops.parsers.io.json_window import UNDECODABLE
    from traceflops.parsers.io.messages import (
        Block,
        Columns,
        Messages,
        fields,
        last_fields,
        message_text,
        parts_of,
        signed,
        split,
        varint,
    )
    from traceflops.parsers.io.notes import NoteTable, read_each, with_notes, with_set_aside
    from traceflops.parsers.io.pickled import unpickled
    from traceflops.parsers.io.places import (
        files_behind,
        find_inputs,
        open_file,
        rank_in_name,
        tell_apart,
    )
    from traceflops.parsers.io.remote import is_remote
    from traceflops.parsers.io.worker_pool import BLOCK_BYTES, Crew, usable_cores
else:
    __getattr__ = lazy(__name__, __file__)
