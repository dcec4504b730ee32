"""The rule file shown in docs/categories.md works, and the page knows every category and key."""

import re
from pathlib import Path

from traceflops.categories.classify import load
from traceflops.categories.rules import KEYS, SUBS, Category

PAGE = (Path(__file__).parents[2] / "docs" / "categories.md").read_text(encoding="utf-8")


def test_the_example_works(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    path = tmp_path / "mine.toml"
    path.write_text(found[1], encoding="utf-8")
    classifier = load(path)
    assert classifier.kernel("void physics::HaloExchange<float>(int)").rule == "my-halo-exchange"
    assert classifier.kernel("void physics::launch<StencilOp>()").category == Category(
        "memory", "elementwise"
    )
    assert classifier.op("physics::step").rule == "my-step"
    assert classifier.kernel("ampere_sgemm_128x64_nt").source == "built-in"


def test_every_sub_category_is_explained() -> None:
    for top, subs in SUBS.items():
        for sub in subs:
            row = re.search(rf"^\| {top} \| .*`{sub}`", PAGE, re.MULTILINE)
            assert row, f"the first table of docs/categories.md has no {top} `{sub}`"


def test_every_key_is_explained() -> None:
    for key in KEYS:
        assert re.search(rf"^\| `{key}` \|", PAGE, re.MULTILINE), key
