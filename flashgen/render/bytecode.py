"""Templates as Python that Jinja makes of them, kept beside the kernels: to make it takes a process a quarter of a second."""

import contextlib
import hashlib
import marshal
import sys
from pathlib import Path

import jinja2

from flashgen import store

_DIGEST_BYTES = hashlib.sha256().digest_size


class Bytecode(jinja2.BytecodeCache):
    """The folder of compiled templates. An entry is its code behind the digest of that; a folder that cannot be used keeps nothing.

    >>> jinja2.Environment(bytecode_cache=Bytecode("trim_blocks"))
    """

    def __init__(self, settings: str):
        """`settings`: all that the code depends on besides the text of a template."""
        self.settings = settings

    def get_source_checksum(self, source: str) -> str:
        """The digest of all that the code depends on: the text, what reads it, the Python that runs it."""
        return hashlib.sha256(f"{source}\0{self.settings}\0{jinja2.__version__}\0{sys.version}".encode()).hexdigest()

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Takes the code of an entry that is there, whole, and that nobody else could have written."""
        with contextlib.suppress(OSError):
            path = _path(bucket)
            store.trust(path)
            data = path.read_bytes()
            code = data[_DIGEST_BYTES:]
            if store.found(path) and hashlib.sha256(code).digest() == data[:_DIGEST_BYTES]:
                bucket.code = marshal.loads(code)

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Keeps the code of a template, if the folder can be written: what compiles kernels warns where it cannot."""
        code = marshal.dumps(bucket.code)
        with contextlib.suppress(OSError):
            store.put(_path(bucket), hashlib.sha256(code).digest() + code)


def _path(bucket: jinja2.bccache.Bucket) -> Path:
    return store.root() / store.TEMPLATES / f"{bucket.key[:16]}-{bucket.checksum[:32]}"
