"""Files of specs: their names, bytes that are no text, and random texts, which are specs or one SpecError."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import SpecError
from flashgen.spec import Spec, load, loads
from tests.spec.test_yaml import HEAD, SPECS


@pytest.mark.parametrize(
    ("file", "name"),
    [("alibi.yaml", "alibi"), ("my-spec.v2.yaml", "my_spec_v2"), ("half.yaml", "my_half"), ("9_.yaml", "my_9"), ("ä.yaml", "my")],
)
def test_a_spec_is_called_as_its_file(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text(HEAD)
    assert load(tmp_path / file).name == name
    (tmp_path / file).write_text(HEAD + "name: other\n")
    assert load(tmp_path / file).name == "other"


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "causal.yaml"
    good.write_text(HEAD)
    assert load(str(good)) == load(good) == loads("name: causal\n" + HEAD)
    for path, message, hint in [
        (tmp_path, "is a directory", "name a file"),
        (tmp_path / "causl.yaml", "no file", f"did you mean {good}?"),
        (tmp_path / "nowhere" / "causal.yaml", "no file", ""),
        (tmp_path / "\0", "cannot read", ""),
        (good / "x", "cannot read", ""),
    ]:
        with pytest.raises(SpecError, match=message) as caught:
            load(path)
        assert hint == caught.value.hint or hint in caught.value.hint


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("dtype: float16\nname: ä".encode() + b"\xff\n")
    with pytest.raises(SpecError, match="0xff is not UTF-8") as caught:
        load(path)
    assert caught.value.position
    assert (caught.value.position.line, caught.value.position.column) == (2, 8)
    path.write_bytes(HEAD.encode("utf-16"))
    with pytest.raises(SpecError, match="not UTF-8"):
        load(path)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"# " + b"x" * 10_000_000)
    with pytest.raises(SpecError, match="larger than 65536 bytes"):
        load(path)


@given(st.binary(max_size=200))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_bytes(data)
    with pytest.raises(SpecError):
        load(path)


PIECES = [
    *"{}[]:,&*!|>'\"%@`#-?~\t\n \r\0\x85\u2028ä",
    *["<<:", "*a", "&a", "!!int", "? ", "---", "...", '"\\U', "1e9", "null", "0x", ": "],
]


@given(st.sampled_from([path.read_text() for path in SPECS]), st.data())
def test_random_mutations(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 6))
        text = text[:start] + data.draw(st.sampled_from(PIECES) | st.text(max_size=3)) + text[end:]
    try:
        spec = loads(text)
    except SpecError:
        return
    assert Spec(**spec.to_json()) == spec
    for path in ("score", "mask"):
        for offset in range(len(getattr(spec, path)) + 1):
            assert spec.position(path).shift(offset).excerpt()
