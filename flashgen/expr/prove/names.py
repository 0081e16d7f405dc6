"""The table of names: what a kernel calls indices and lengths of the language, and how long axes of tensors are there."""

from collections.abc import Mapping

from flashgen.expr.language.nodes import Argument, Call, Name, Node

KERNEL = {
    "b": "batch",
    "h": "head",
    "hk": "kv_head",
    "q_len": "p.q_len",
    "kv_len": "p.kv_len",
}
LANGUAGE = {kernel: name for name, kernel in KERNEL.items()}
BATCH, HEADS, GROUP, Q_LEN, KV_LEN = (Argument(f"p.{name}", "int") for name in ("batch", "heads", "group", "q_len", "kv_len"))
OWN: Mapping[str, Node] = {name: Argument(name, "int") for name in ("q_len", "kv_len")}  # where a sequence has one of its own
FIRST: Mapping[str, Argument] = {  # of a sequence's rows among those of all, one behind the other
    "q_len": Argument("first_query", "int"),
    "kv_len": Argument("first_key", "int"),
}
TOTAL: Mapping[str, Argument] = {"q_len": Argument("p.total_q", "int"), "kv_len": Argument("p.total_k", "int")}
NODES: Mapping[str, Node] = {name: Name(KERNEL[name], "int") for name in ("b", "h", "hk")} | {"q_len": Q_LEN, "kv_len": KV_LEN}
EXTENTS: Mapping[str | int, Node] = {  # of axes
    "b": BATCH,
    "hq": HEADS,
    "hk": Call("quotient", (HEADS, GROUP), "int"),
    "q_len": Q_LEN,
    "kv_len": KV_LEN,
}
WHOLE = {"b": "b", "h": "hq", "hk": "hk"}  # indices that run over an axis, and are never outside
