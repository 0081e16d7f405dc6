"""Specs in files and in text: how they are found and read. A spec is untrusted: its size is bounded."""

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from flashgen.errors import SpecError, nearest
from flashgen.spec.model import Spec
from flashgen.spec.text import Text
from flashgen.spec.words import free_name, name_fault

MAX_BYTES = 65536


def load(path: str | PathLike[str]) -> Spec:
    """Read a spec from a file.

    >>> load("specs/causal.yaml").mask
    'causal'

    Without a name of its own it is called as the file. Raises SpecError: the file cannot be read, or the first mistake in it.
    """
    file = fspath(path)
    data = _read(Path(path))
    try:
        return _spec(data.decode(), file, {"name": free_name(Path(path).stem, name_fault)})
    except UnicodeDecodeError as error:
        position = Text(file, data[: error.start].decode() + "\ufffd").at(len(data[: error.start].decode()))
        raise SpecError(f"byte 0x{data[error.start]:02x} is not UTF-8", position, "save the file as UTF-8") from None


def loads(text: str, file: str = "<spec>") -> Spec:
    """Read a spec from text; `file` is what errors call it.

    >>> loads("{dtype: float16, head_dim: 64}").head_dim
    HeadDim(qk=64, v=64)
    """
    return _spec(text, file, {})


def _spec(text: str, file: str, unless_given: dict[str, Any]) -> Spec:
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise SpecError(f"{file}: larger than {MAX_BYTES} bytes", hint="a spec is a few lines; arrays are given at the call, as tensors")
    from flashgen.spec.yaml import Reader  # ruamel.yaml takes longer to import than a spec to read

    reader = Reader(Text(file, text.removeprefix("\ufeff")))
    return Spec.located(unless_given | reader.document(), reader.positions)


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise SpecError(f"{path} is a directory", hint="name a file in it")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = nearest(path.name, sorted(p.name for p in path.parent.glob("*.yaml")))
        mapping = "give the path of a YAML file, or a mapping with its keys" if not path.suffix else ""
        raise SpecError(f"no file {path}", hint=f"did you mean {path.parent / near[0]}?" if near else mapping) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read {str(path)!r}: {error}") from None
