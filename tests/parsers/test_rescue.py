"""What is whole beside damage is read, whatever the damage is and wherever blocks are cut."""

import gzip
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.parsers.documents import COMPACT, PRETTY, Layout, codes, read_bytes, read_one, source_of
from tests.parsers.test_damage import kernels, names
from traceflops.errors import InputError
from traceflops.table.trace import Trace

SIZES = (7, 90, 700, 1 << 20)
LAYOUTS = (COMPACT, PRETTY)
HEAD, TAIL = '{"schemaVersion": 1, "traceEvents": [', '], "distributedInfo": {"rank": 3}}'

Damage = Callable[[str], str]

HARMLESS: dict[str, tuple[Damage, str]] = {
    "zeros before it": (lambda event: "\0" * 300 + event, "json-dropped"),
    "a comment before it": (lambda event: "// a comment\n" + event, "json-dropped"),
    "a comment behind it": (lambda event: event + "/* a comment */", "json-dropped"),
    "brackets before it": (lambda event: "@ }}]]{{ " + event, "json-dropped"),
    "a brace too many": (lambda event: event + "}", "json-dropped"),
    "a bracket too many": (lambda event: event + "]", "json-dropped"),
    "two commas": (lambda event: event + ",", "json-repaired"),
    "many commas": (lambda event: ", ,,\n" * 90 + event, "json-repaired"),
}
FATAL: dict[str, Damage] = {
    "a brace is missing": lambda event: event.rstrip()[:-1],
    "two braces are missing": lambda event: event.rstrip()[:-1].rstrip()[:-1],
    "only its first half": lambda event: event[: len(event) // 2],
    "zeros instead of it": lambda event: "\0" * len(event),
    "brackets instead of it": lambda event: "@@ }}]]{{ ",
    "the quote of a key is missing": lambda event: event.replace('cat"', "cat", 1),
}


def file_of(events: list[str], layout: Layout, comma: str | None = None) -> bytes:
    return (HEAD + (comma or layout.comma).join(events) + TAIL).encode()


def printed(layout: Layout) -> list[str]:
    return [layout.printed(event) for event in kernels(9)]


NAMES = [event["name"] for event in kernels(9)]


def losses(trace: Trace) -> set[str]:
    return codes(trace) & {"json-dropped", "json-repaired", "text-cut", "tail-unread"}


@pytest.mark.parametrize("what", HARMLESS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["compact", "pretty"])
@pytest.mark.parametrize("size", SIZES)
def test_damage_between_events_costs_none(what: str, layout: Layout, size: int) -> None:
    damage, code = HARMLESS[what]
    events = printed(layout)
    for place in (2, 3, 6):
        events[place] = damage(events[place])
    trace = read_bytes(file_of(events, layout), size)
    assert (names(trace), losses(trace), trace.ranks) == (NAMES, {code}, (3,))


@pytest.mark.parametrize("what", FATAL)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["compact", "pretty"])
@pytest.mark.parametrize("size", SIZES)
def test_a_lost_event_costs_no_other(what: str, layout: Layout, size: int) -> None:
    events = printed(layout)
    for place in (3, 6):
        events[place] = FATAL[what](events[place])
    trace = read_bytes(file_of(events, layout), size)
    assert names(trace) == [name for n, name in enumerate(NAMES) if n not in (3, 6)]
    assert (losses(trace), trace.ranks) == ({"json-dropped"}, (3,))


def test_the_note_counts_what_was_lost() -> None:
    events = printed(COMPACT)
    events[2] = events[2][:-1]
    events[5] = "\0" * 40
    (note,) = [
        note for note in read_bytes(file_of(events, COMPACT)).notes if "dropped" in note.code
    ]
    size = len(events[2]) + 40
    assert f"1 event could not be read ({size} bytes in 2 places)" in note.text


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("between", ["", "\n", " \r\n"])
def test_events_need_no_comma(between: str, size: int) -> None:
    events = printed(COMPACT)
    trace = read_bytes(file_of(events, COMPACT, between or "\t"), size)
    assert (names(trace), losses(trace), trace.ranks) == (NAMES, {"json-repaired"}, (3,))


@pytest.mark.parametrize("opener", ["[", "[[", "[ \n"])
def test_a_bracket_that_is_never_closed_swallows_nothing(opener: str) -> None:
    events = printed(COMPACT)
    one, all_of_them = events[:], [opener + event for event in events]
    one[4] = opener + one[4]
    for mine in (one, all_of_them):
        trace = read_bytes(file_of(mine, COMPACT))
        assert names(trace) == NAMES
        assert "json-dropped" in losses(trace)


@pytest.mark.parametrize("end", [']},"x":[', "]", "]}", '], "x": "'])
def test_the_list_has_not_ended_where_events_follow(end: str) -> None:
    events = printed(COMPACT)
    events[4] = end + events[4]
    found = names(read_bytes(file_of(events, COMPACT)))
    assert found[:4] == NAMES[:4]
    assert found[-4:] == NAMES[-4:]


def test_a_second_trace_in_the_list_is_said() -> None:
    whole = file_of(printed(COMPACT), COMPACT).decode()
    cut = whole[: whole.index('{"ph":"X","cat":"kernel","name":"5')]
    for half in ("", '{"ph":"X","ts":'):
        trace = read_bytes((cut + half + whole).encode())
        texts = " ".join(note.text for note in trace.notes)
        assert "in which 10 events begin" in texts or "without a phase" in texts


@settings(max_examples=examples(150))
@given(
    st.dictionaries(st.integers(0, 8), st.binary(max_size=60), min_size=1),
    st.sampled_from(SIZES),
    st.sampled_from(LAYOUTS),
)
def test_any_bytes_without_structure_between_events_cost_none(
    junk: dict[int, bytes], size: int, layout: Layout
) -> None:
    events = [event.encode() for event in printed(layout)]
    for place, piece in junk.items():
        events[place] = piece.translate(None, b'"{}[],\\') + events[place]
    data = HEAD.encode() + layout.comma.encode().join(events) + TAIL.encode()
    assert names(read_bytes(data, size)) == NAMES


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "args",
    ['{"a":{%s}, oops}', '{"l":[{%s},{%s}], oops}', '{"l":[{%s}, {%s}], "b": {%s}, oops}'],
    ids=["a value", "a list", "both"],
)
def test_what_is_inside_a_damaged_event_is_none(args: str, size: int) -> None:
    inner = '"ph":"X","cat":"kernel","name":"no event","ts":1,"dur":1'
    events = printed(COMPACT)
    damaged = args.replace("%s", inner)
    events[4] = f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"args":{damaged}}}'
    trace = read_bytes(file_of(events, COMPACT), size)
    assert names(trace) == [name for n, name in enumerate(NAMES) if n != 4]
    assert (losses(trace), trace.ranks) == ({"json-dropped"}, (3,))
    assert "no-phase" not in codes(trace)


def test_the_arguments_of_a_damaged_event_are_no_object_of_their_own() -> None:
    damaged = '{"name": "process_name" x, "ph": "M", "pid": 0, "args": {"name": "python"}}'
    whole = read_bytes(file_of(printed(COMPACT), COMPACT))
    trace = read_bytes(file_of([damaged, *printed(COMPACT)], COMPACT))
    assert codes(trace) - codes(whole) == {"json-dropped"}


@pytest.mark.parametrize("behind", ["", '"traceName": "x", '])
@pytest.mark.parametrize("size", SIZES)
def test_a_brace_too_many_does_not_hide_the_end_of_the_list(behind: str, size: int) -> None:
    data = file_of([*printed(COMPACT)], COMPACT).replace(
        b'}], "', b"}}], " + behind.encode() + b'"'
    )
    trace = read_bytes(data, size)
    assert (names(trace), losses(trace), trace.ranks) == (NAMES, {"json-dropped"}, (3,))
    data = data.replace(b'"distributedInfo"', b'"other"')
    assert losses(read_bytes(data, size)) == {"json-dropped"}


def test_looking_for_events_is_bounded() -> None:
    """Neither nested nor repeated beginnings cost their square: this would take hours."""
    event = printed(COMPACT)[0].encode()
    for text in (b'{"id":' * 30_000, b'{"id":[' * 30_000, b'{"id":"' * 30_000):
        found = read_bytes(b"[" + event + b"," + text)
        assert len(names(found)) == 1
    for text in (b'[{"name":"x"},' * 12_000, b"{" * 150_000, (b"[" + event + b",") * 3_000):
        found = read_bytes(b"[" + event + b"," + text + event + b"]")
        assert len(names(found)) == 2 + text.count(event)


def test_a_list_that_is_not_closed_loses_no_event() -> None:
    whole = file_of(printed(COMPACT), COMPACT).decode()
    for end in ("}", ""):
        trace = read_bytes((whole.removesuffix(TAIL) + end).encode())
        (note,) = [note for note in trace.notes if note.code == "text-cut"]
        assert names(trace) == NAMES
        assert "bytes" not in note.text


def test_an_endless_last_value_does_not_hide_the_end_of_the_list() -> None:
    events = printed(COMPACT)
    giant = '{"ph": "X", "name": "' + "x" * (70 << 20) + '"}'
    trace = read_one(source_of(file_of([*events, giant], COMPACT)))
    assert (names(trace), losses(trace), trace.ranks) == (NAMES, {"json-dropped"}, (3,))


@pytest.mark.parametrize("gap", ["", "\n" * 3, " " * 100_000])
def test_a_second_trace_in_the_file_is_said(gap: str) -> None:
    whole = file_of(printed(COMPACT), COMPACT)
    trace = read_bytes(whole + gap.encode() + whole)
    (note,) = [note for note in trace.notes if note.code == "second-trace"]
    assert (names(trace), note.count, trace.ranks) == (NAMES, len(whole), (3,))


@pytest.mark.parametrize("cut", ['{"schemaVersion"', '"traceEvents":', "traceEv", "[", '{"ph"'])
def test_a_cut_before_the_first_event_is_called_one(cut: str) -> None:
    whole = file_of(printed(COMPACT), COMPACT).decode()
    for end in (0, 1):
        text = whole[: whole.index(cut) + end * len(cut)]
        if text:
            with pytest.raises(InputError, match="cut off before its first complete event"):
                read_bytes(text.encode())


def test_a_gzip_stream_without_its_checksum_is_whole() -> None:
    packed = gzip.compress(file_of(printed(COMPACT), COMPACT))
    trace = read_one(source_of(packed[:-8]))
    assert (names(trace), codes(trace) & {"input-cut", "no-checksum"}) == (NAMES, {"no-checksum"})
    trace = read_one(source_of(gzip.compress(json.dumps(kernels(900)).encode())[:-90]))
    assert codes(trace) & {"input-cut", "no-checksum"} == {"input-cut"}
