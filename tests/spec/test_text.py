"""Positions inside scalars."""

import pytest

from flashgen.errors import Position
from flashgen.spec import loads
from flashgen.spec.text import Text

HEAD = "dtype: float16\nhead_dim: 64\n"


@pytest.mark.parametrize(
    "text",
    [
        "mask: causal & XX",
        "mask: 'causal & XX'",
        'mask: "causal & XX"',
        "mask:    causal   &   XX  # why",
        "mask: '  causal & XX '",
        "mask: causal\n  & XX",
        "mask:\n  causal &\n\n  XX",
        "mask: >-\n  causal\n  & XX",
        "mask: >-\r\n  causal\r\n  & XX\r\n",
        "mask: |\n    causal\n      &\n    XX\n",
        "mask: |2-\n    causal &\n    XX\n",
        '"mask": "causal\n   & XX"',
        "? mask\n: causal & XX",
        "params: {x: 1}\nmask: &a causal & XX",
        "{mask: causal & XX}",
    ],
)
def test_characters_are_found(text: str) -> None:
    whole = text.replace("{", "{dtype: float16, head_dim: 64, ", 1) if text.startswith("{") else HEAD + text
    spec = loads(whole, "a.yaml")
    assert spec.mask == "causal & XX"
    for word in ("causal", "&", "XX"):
        place = spec.position("mask").shift(spec.mask.index(word))
        expected = Text("a.yaml", whole).at(whole.index(word, whole.index("causal")))
        assert (place.line, place.column, place.text) == (expected.line, expected.column, expected.text)


def test_beyond_an_escape_the_escape_is_the_place() -> None:
    spec = loads(HEAD + 'mask: "causal \\x26 XX"\n')
    assert spec.mask == "causal & XX"
    assert spec.position("mask").shift(9).column == 15


def test_lines_end_as_editors_count_them() -> None:
    text = Text("a", "1\r\n2\r3\n\n\x0b\u20285")
    assert [(text.at(i).line, text.at(i).column) for i in range(10)] == [
        (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (5, 1), (5, 2),
    ]  # fmt: skip
    assert text.at(3) == Position("a", 2, 1, "2")


def test_values_of_other_keys_begin_at_their_quote() -> None:
    spec = loads(HEAD + 'name: "x"\nparams: {softcap: 50.0}\n')
    assert spec.position("params.softcap").column == 19
    assert (spec.position("dtype").line, spec.position("dtype").column) == (1, 8)
