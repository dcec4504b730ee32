"""Bytes to rows: files, archives, worker processes, JSON, CSV and SQLite; no tool is named here.

    path -> ByteSource                 places, remote, inputs: files, archives, streams, stores
    ByteSource -> blocks of bytes
      JSON    -> EventStream, Document   lists in blocks, decoded by the workers of a WorkerPool
      CSV     -> CsvText                 blocks of columns, by the header of each table
      SQLite  -> Database                batches of columns of its tables
      Arrow   -> ArrowTable              record batches, checked
      pickle  -> unpickled               plain values
      protobuf-> Messages                fields of many messages as columns

Damage never raises while anything can be read: one value, row or table is left out, reading goes
on behind it, and counts of what was mended, dropped or cut off become notes.
"""
