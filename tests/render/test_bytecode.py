"""Compiled templates are kept, and taken only whole and from a folder that nobody else writes to."""

import jinja2
import pytest

from flashgen import store
from flashgen.render.bytecode import Bytecode

TEXT = "${x} and ${y}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / store.TEMPLATES


def said(text=TEXT, settings="", begin="${"):
    """The text that an environment of its own prints, and whether it compiled the template."""
    env = jinja2.Environment(
        loader=jinja2.DictLoader({"a": text}),
        bytecode_cache=Bytecode(settings),
        variable_start_string=begin,
        variable_end_string="}",
    )
    compiled = []
    right = env.compile
    env.compile = lambda *given: compiled.append(given) or right(*given)
    return env.get_template("a").render(x=1, y=2), bool(compiled)


def test_a_template_is_compiled_once(place):
    assert said() == ("1 and 2", True)
    assert said() == ("1 and 2", False)
    assert len(list(store.entries(store.TEMPLATES))) == 1
    assert place.stat().st_mode & 0o777 == 0o700


def test_another_text_and_another_syntax_are_compiled_anew(place):
    assert said() == ("1 and 2", True)
    assert said("${y}") == ("2", True)
    assert said(settings="begin", begin="$<") == (TEXT, True)
    assert len(list(place.iterdir())) == 3


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:0], lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:]]
)
def test_what_is_damaged_is_made_anew(place, damage):
    said()
    (entry,) = place.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert said() == ("1 and 2", True)
    assert said() == ("1 and 2", False)


def test_what_others_may_write_is_not_taken(place):
    said()
    place.chmod(0o777)
    assert said() == ("1 and 2", True)


def test_where_nothing_can_be_kept_it_works(monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "/proc/nowhere")
    assert said() == ("1 and 2", True)
    assert said() == ("1 and 2", True)


def test_they_go_with_the_cache(place):
    said()
    store.clear()
    assert list(place.iterdir()) == []
