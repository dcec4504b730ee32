"""The tables of a rocpd database, as data: columns by table and what later versions add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

Version = Literal["3.0.0", "3.0.2", "3.0.3"]

_TABLES: Final = {
    "string": "string:TEXT!",
    "info_node": "hash:BIGINT! machine_id:TEXT! system_name:TEXT hostname:TEXT release:TEXT "
    "version:TEXT hardware_name:TEXT domain_name:TEXT",
    "info_process": "nid! ppid pid! init:BIGINT fini:BIGINT start:BIGINT end:BIGINT command:TEXT "
    "environment:JSON extdata:JSON",
    "info_thread": "nid! ppid pid! tid! name:TEXT start:BIGINT end:BIGINT extdata:JSON",
    "info_agent": "nid! pid! type:TEXT absolute_index logical_index type_index uuid name:TEXT "
    "model_name:TEXT vendor_name:TEXT product_name:TEXT user_name:TEXT extdata:JSON",
    "info_queue": "nid! pid! name:TEXT extdata:JSON",
    "info_stream": "nid! pid! name:TEXT extdata:JSON",
    "info_pmc": "nid! pid! agent_id target_arch:TEXT event_code:INT instance_id name:TEXT! "
    "symbol:TEXT! description:TEXT long_description:TEXT component:TEXT units:TEXT "
    "value_type:TEXT block:TEXT expression:TEXT is_constant is_derived {spm} extdata:JSON",
    "info_code_object": "nid! pid! agent_id uri:TEXT load_base:BIGINT load_size:BIGINT "
    "load_delta:BIGINT storage_type:TEXT extdata:JSON",
    "info_kernel_symbol": "nid! pid! code_object_id! kernel_name:TEXT display_name:TEXT "
    "kernel_object kernarg_segment_size kernarg_segment_alignment group_segment_size "
    "private_segment_size sgpr_count arch_vgpr_count accum_vgpr_count extdata:JSON",
    "track": "nid! pid tid name_id extdata:JSON",
    "event": "category_id stack_id parent_stack_id correlation_id call_stack:JSON line_info:JSON "
    "extdata:JSON",
    "arg": "event_id! position! type:TEXT! name:TEXT! value:TEXT extdata:JSON",
    "pmc_event": "event_id {sample} pmc_id! value:REAL {place} extdata:JSON",
    "region": "nid! pid! tid! start:BIGINT! end:BIGINT! name_id! event_id extdata:JSON",
    "sample": "track_id! timestamp:BIGINT! event_id extdata:JSON",
    "kernel_dispatch": "nid! pid! tid agent_id! kernel_id! dispatch_id! queue_id! stream_id! "
    "start:BIGINT! end:BIGINT! private_segment_size group_segment_size workgroup_size_x! "
    "workgroup_size_y! workgroup_size_z! grid_size_x! grid_size_y! grid_size_z! {graph} "
    "region_name_id event_id extdata:JSON",
    "memory_copy": "nid! pid! tid start:BIGINT! end:BIGINT! name_id! dst_agent_id dst_address "
    "src_agent_id src_address size! queue_id stream_id {graph} region_name_id event_id "
    "extdata:JSON",
    "memory_allocate": "nid! pid! tid agent_id type:TEXT level:TEXT start:BIGINT! end:BIGINT! "
    "address size! queue_id stream_id event_id extdata:JSON",
}
"""Columns after `id` and `guid`; INTEGER where no type is given, ! where a value is required."""

_GRAPH_LAUNCH: Final = (
    "nid! pid! tid agent_id queue_id start:BIGINT! end:BIGINT! graph_exec_id! "
    "kernel_dispatch_count! event_id extdata:JSON"
)
_NOTHING: Final = dict.fromkeys(("graph", "sample", "place", "spm"), "")
_GRAPHS: Final = _NOTHING | {"graph": "graph_exec_id=0 graph_node_id=0"}
_ADDED: Final[dict[Version, dict[str, str]]] = {
    "3.0.0": _NOTHING,
    "3.0.2": _GRAPHS,
    "3.0.3": _GRAPHS
    | {"sample": "sample_id", "place": "xcc shader_engine instance", "spm": "spm_support"},
}

_KERNELS_VIEW: Final = """
CREATE VIEW `kernels` AS
SELECT D.id, D.guid, T.tid, C.string AS category, S.display_name AS name, P.pid,
    A.absolute_index AS agent_abs_index, D.kernel_id, D.dispatch_id, D.stream_id, D.queue_id,
    D.start, D.end, (D.end - D.start) AS duration, E.stack_id, E.correlation_id AS corr_id
FROM `rocpd_kernel_dispatch` D
    JOIN `rocpd_info_agent` A ON A.id = D.agent_id AND A.guid = D.guid
    JOIN `rocpd_event` E ON E.id = D.event_id AND E.guid = D.guid
    JOIN `rocpd_string` C ON C.id = E.category_id AND C.guid = D.guid
    JOIN `rocpd_info_kernel_symbol` S ON S.id = D.kernel_id AND S.guid = D.guid
    JOIN `rocpd_info_process` P ON P.id = D.pid AND P.guid = D.guid
    JOIN `rocpd_info_thread` T ON T.id = D.tid AND T.guid = D.guid
"""


def statements(guid: str, version: Version, views: bool) -> Iterator[str]:
    """Yield what makes an empty database; tables bear the guid as suffix, views do not."""
    suffix = suffix_of(guid)
    tables = dict(_TABLES)
    if version != "3.0.0":
        tables["graph_launch"] = _GRAPH_LAUNCH
    yield (
        f'CREATE TABLE "rocpd_metadata{suffix}" ("id" INTEGER NOT NULL PRIMARY KEY '
        'AUTOINCREMENT, "tag" TEXT NOT NULL, "value" TEXT NOT NULL)'
    )
    for table, columns in tables.items():
        words = columns.format(**_ADDED[version]).split()
        parts = [
            '"id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT',
            f'"guid" TEXT DEFAULT "{guid}" NOT NULL',
            *map(_column, words),
        ]
        yield f"CREATE TABLE `rocpd_{table}{suffix}` (\n    {', '.join(parts)}\n)"
    if views:
        for table in ("metadata", *tables):
            yield f"CREATE VIEW `rocpd_{table}` AS SELECT * FROM `rocpd_{table}{suffix}`"
        yield _KERNELS_VIEW


def suffix_of(guid: str) -> str:
    """Return what stands behind the name of every table."""
    return "_" + guid.replace("-", "_")


def _column(word: str) -> str:
    word, _, default = word.partition("=")
    name, _, type_ = word.rstrip("!").partition(":")
    if type_ == "JSON":
        return f'"{name}" JSONB DEFAULT "{{}}" NOT NULL'
    given = f" DEFAULT {default}" if default else ""
    required = " NOT NULL" if word.endswith("!") or default else ""
    return f'"{name}" {type_ or "INTEGER"}{required}{given}'
