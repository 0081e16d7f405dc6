"""The C structs that XLA hands a handler, of its foreign function interface, read by ctypes, without a C++ build.

Names of fields follow xla/ffi/api/c_api.h of jaxlib 0.10 (version 0.3); all that is read lies at the same place since version 0.1. Pointers
that are only handed on are void.
"""

import ctypes
import struct
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, NamedTuple

VERSION = (0, 3)
EXECUTE, STRING = 3, 4  # a stage, and a type of attribute
COMMAND_BUFFERS = 1  # a trait: CUDA graphs may capture a handler
_METADATA = 1  # the extension by which a frame asks what a handler is
_INVALID_ARGUMENT = 3
_DTYPES = {1: "bool", 4: "int32", 5: "int64", 10: "float16", 11: "float32", 16: "bfloat16"}


def _struct(name: str, **fields: Any) -> Any:
    """A struct of C, of these fields in order."""
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Extension = _struct("Extension", struct_size=c_size_t, type=c_int, next=c_void_p)
Version = _struct("Version", struct_size=c_size_t, extension_start=c_void_p, major=c_int, minor=c_int)
Metadata = _struct("Metadata", struct_size=c_size_t, api_version=Version, traits=c_uint32)
MetadataExtension = _struct("MetadataExtension", base=Extension, metadata=POINTER(Metadata))
# The runtime's functions, as far as they are called here.
Api = _struct(
    "Api",
    struct_size=c_size_t,
    extension_start=c_void_p,
    api_version=Version,
    internal_api=c_void_p,
    error_create=c_void_p,
    error_get_message=c_void_p,
    error_destroy=c_void_p,
    handler_register=c_void_p,
    stream_get=c_void_p,
)
# A buffer: struct_size, extension_start, dtype, data, rank, dims. Unpacked from bytes in half the time that fields of a struct take.
_BUFFER = struct.Struct("<QQi4xQqQ")
Buffers = _struct("Buffers", struct_size=c_size_t, extension_start=c_void_p, size=c_int64, types=c_void_p, items=c_void_p)
Span = _struct("Span", ptr=c_void_p, len=c_size_t)
Attributes = _struct(
    "Attributes",
    struct_size=c_size_t,
    extension_start=c_void_p,
    size=c_int64,
    types=POINTER(c_int),
    names=POINTER(POINTER(Span)),
    items=POINTER(c_void_p),
)
# A call.
Frame = _struct(
    "Frame",
    struct_size=c_size_t,
    extension_start=c_void_p,
    api=POINTER(Api),
    ctx=c_void_p,
    stage=c_int,
    args=Buffers,
    rets=Buffers,
    attrs=Attributes,
)
ErrorCreate = _struct("ErrorCreate", struct_size=c_size_t, extension_start=c_void_p, message=c_char_p, code=c_int)
StreamGet = _struct("StreamGet", struct_size=c_size_t, extension_start=c_void_p, ctx=c_void_p, stream=c_void_p)

HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(Frame))
_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)  # of the runtime: a pointer to its arguments in, an error or null out


class Operand(NamedTuple):
    """An array of a call, row-major, in the platform's memory; without elements its address may be null."""

    data: int
    shape: tuple[int, ...]
    dtype: str


def operands(buffers: Any) -> list[Operand]:
    """The arrays of a call's arguments or results. Raises TypeError for a dtype that no attention has."""
    found = []
    for place in _integers(buffers.items, buffers.size):
        _, _, dtype, data, rank, dims = _BUFFER.unpack(ctypes.string_at(place, _BUFFER.size))
        if dtype not in _DTYPES:
            raise TypeError(f"an array has XLA's data type {dtype}: attention takes {', '.join(_DTYPES.values())}")
        found.append(Operand(data, _integers(dims, rank), _DTYPES[dtype]))
    return found


def _integers(place: int, count: int) -> tuple[int, ...]:
    """Integers of 64 bits behind each other; there may be none, at a place that is null."""
    return struct.unpack(f"<{count}q", ctypes.string_at(place, 8 * count)) if count else ()


def text(frame: Any) -> str:
    """The one attribute of a call, a text."""
    assert (frame.attrs.size, frame.attrs.types[0]) == (1, STRING)
    span = Span.from_address(frame.attrs.items[0])
    return ctypes.string_at(span.ptr, span.len).decode()


def stream(frame: Any) -> int:
    """The stream of the caller."""
    arguments = StreamGet(ctypes.sizeof(StreamGet), None, frame.ctx, None)
    if _FUNCTION(frame.api.contents.stream_get)(ctypes.addressof(arguments)):
        raise RuntimeError("XLA gives no stream: this platform has none")
    return int(arguments.stream or 0)


def asks_what_it_is(frame: Any, traits: int) -> bool:
    """True for the call by which XLA asks for version and traits of a handler, when it is registered; it is answered here.

    XLA takes any version up to its own, and a plugin carries an XLA of its own.
    """
    if not frame.extension_start or Extension.from_address(frame.extension_start).type != _METADATA:
        return False
    metadata = MetadataExtension.from_address(frame.extension_start).metadata.contents
    spoken = frame.api.contents.api_version if frame.api else None
    metadata.api_version.major, metadata.api_version.minor = min(VERSION, (spoken.major, spoken.minor)) if spoken else (0, 1)
    metadata.traits = traits
    return True


def error(frame: Any, fault: BaseException) -> int | None:
    """XLA's error of an exception, which no handler may let out: ctypes would print it, and XLA free an address that nobody wrote."""
    message = f"{type(fault).__name__}: {fault}".encode(errors="replace").replace(b"\0", b" ")
    arguments = ErrorCreate(ctypes.sizeof(ErrorCreate), None, message, _INVALID_ARGUMENT)
    found: int | None = _FUNCTION(frame.api.contents.error_create)(ctypes.addressof(arguments))
    return found
