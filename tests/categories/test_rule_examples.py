"""Every built-in rule is reached by a name of `rule_examples.csv` and says what the table says.

The names follow the spellings of the libraries they belong to and were shortened by hand; none was
taken over with its full argument list from a trace.
"""

import csv
from pathlib import Path

from traceflops.categories.classify import load
from traceflops.categories.rules import SUBS, built_in, check_pattern

with Path(__file__).with_name("rule_examples.csv").open(newline="", encoding="utf-8") as file:
    EXAMPLES = [(row["rule"], row["name"], row["top"], row["sub"]) for row in csv.DictReader(file)]


def test_examples() -> None:
    classifier = load()
    for rule, name, top, sub in EXAMPLES:
        decision = classifier.op(name) if rule.startswith("op-") else classifier.kernel(name)
        found = decision.rule, decision.category.top, decision.category.sub
        assert found == (rule, top, sub), name
        assert decision.source == "built-in"
        assert decision.looked_at or not name


def test_every_rule_has_an_example() -> None:
    without = {rule.id for rule in built_in()} - {rule for rule, *_ in EXAMPLES}
    assert without == set(), "add a name that each matches to tests/categories/rule_examples.csv"


def test_every_example_has_a_rule() -> None:
    assert {rule for rule, *_ in EXAMPLES} - {rule.id for rule in built_in()} == {"none"}


def test_rule_ids_are_unique() -> None:
    ids = [rule.id for rule in built_in()]
    assert len(ids) == len(set(ids))


def test_op_rules_are_named_so() -> None:
    for rule in built_in():
        assert rule.id.startswith("op-") == bool(rule.patterns("op"))


def test_built_in_rules_obey_the_rules_for_rules() -> None:
    for rule in built_in():
        known = SUBS[rule.category.top]
        assert rule.category.sub in known, f"{rule.id}: not in SUBS of categories/rules.py"
        assert rule.because.isprintable() and 0 < len(rule.because) <= 200
        for patterns in rule.conditions.values():
            assert [check_pattern(pattern) for pattern in patterns] == [None] * len(patterns)


def test_every_sub_category_but_migration_has_a_rule() -> None:
    subs = {sub for allowed in SUBS.values() for sub in allowed}
    # Page migrations have no kernel name: they are known from the record's kind.
    assert subs - {rule.category.sub for rule in built_in()} == {"migration"}
