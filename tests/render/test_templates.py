"""The rules of templates: short, few branches, names that a plan gives, no architecture outside a skeleton, no dead device function."""

import re
from functools import cache

import jinja2
import jinja2.meta
import pytest

from flashgen.ladder import RUNGS
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.plan.shares import Demand
from flashgen.render import render, template_root
from flashgen.render.describe import describe
from flashgen.render.environment import environment
from flashgen.render.snippets import vocabulary
from flashgen.spec import Spec, load
from flashgen.spec.shipped import spec_root

LINES, WIDTH, CONDITIONS, NESTING = 150, 160, 5, 2
OF_WORDS = ("frame.cu.j2", "engines/wgmma/tile_of_16_bits.j2")  # have the type u16: bits, not an element
TEMPLATES = sorted(path.relative_to(template_root()).as_posix() for path in template_root().rglob("*.j2"))
GIVEN = {"program", "holes", "looking", "keys", "rows", "digest", "version", "vocabulary"}  # by render()
GIVEN_OTHERWISE = {
    "kernels/append.cu.j2": {"plan", "version", "vocabulary"},
    "kernels/merge.cu.j2": {"plan", "version", "vocabulary"},
    "launch/kernel.h.j2": {"program", "source", "banner", "arrays", "grids", "members", "given", "ranks", "name", "part"},
    "launch/kernel.c.j2": {
        "program",
        "banner",
        "name",
        "part",
        "fills",
        "pieces",
        "blocks",
        "shared",
        "counts",
        "told",
        "counting",
        "embedded",
        "section",
    },
    "ladder.html.j2": {"climb", "rungs", "overflow", "words", "charts", "backward", "memory"},
    "explain.html.j2": {"program", "yaml", "work", "heads", "rows", "counts", "mask", "kernels"},
    "bench.html.j2": {"results", "names", "rows", "charts", "mode"},
}
ARCHES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120")

_BACKWARDS = {
    (dtype, columns, copy_bytes): Spec(
        head_dim=columns, dtype=dtype, mask=mask, softmax=softmax, backward=True, deterministic=columns in (72, 96)
    )
    for dtype, columns, mask, copy_bytes, softmax in (
        ("float16", 128, "full", 0, "softmax"),
        ("bfloat16", 96, "causal", 0, "softmax"),
        ("bfloat16", 72, "causal", 2, "softmax"),
        ("bfloat16", 256, "causal", 0, "softmax"),
        ("bfloat16", 256, "causal", 8, "none"),
    )
}


@cache
def emitted() -> dict[tuple[str, str], str]:
    """Every shipped spec, and every rung of the ladder, for every architecture; a backward of each kind."""
    specs = {path.stem: load(path) for path in sorted(spec_root().glob("*.yaml"))}
    texts = {(name, arch): render(plan(spec, arch)).text for name, spec in specs.items() for arch in ARCHES}
    rungs = {(rung.name, rung.arch(None)): rung.spec(64, "float16") for rung in RUNGS if rung.schedule}
    texts |= {
        (f"backward {dtype} {columns} {copy_bytes}", arch): render(plan_backward(spec, arch, copy_bytes)).text
        for (dtype, columns, copy_bytes), spec in _BACKWARDS.items()
        for arch in ARCHES
    }
    texts["few", "sm_90a"] = render(plan(specs["causal"], "sm_90a", demand=Demand(shared=True, rows=16))).text
    texts["cluster", "sm_90a"] = render(plan(specs["causal"], "sm_90a", demand=Demand(shared=True, rows=16, strands=4, cluster=8))).text
    return texts | {(name, arch): render(plan(spec, arch)).text for (name, arch), spec in rungs.items()}


def parsed(name: str) -> jinja2.nodes.Template:
    environment().filters["description"] = describe  # as render() does
    return environment().parse((template_root() / name).read_text(), name)


def depth(node: jinja2.nodes.Node) -> int:
    """The depth to which `if`s nest; `elif` and `else` are the level of their `if`."""
    below = max((depth(child) for child in node.iter_child_nodes()), default=0)
    return below + (isinstance(node, jinja2.nodes.If) and not getattr(node, "is_elif", False))


@pytest.mark.parametrize("name", TEMPLATES)
def test_short(name):
    lines = (template_root() / name).read_text().splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("name", TEMPLATES)
def test_few_branches(name):
    tree = parsed(name)
    for node in tree.find_all(jinja2.nodes.If):
        for branch in node.elif_:
            branch.is_elif = True
    branches = [node for node in tree.find_all((jinja2.nodes.If, jinja2.nodes.CondExpr)) if not getattr(node, "is_elif", False)]
    assert len(branches) <= CONDITIONS
    assert depth(tree) <= NESTING


@pytest.mark.parametrize("name", TEMPLATES)
def test_reads_what_it_is_given(name):
    allowed = GIVEN_OTHERWISE.get(name, GIVEN)
    tree = parsed(name)
    imported = {alias if isinstance(alias, str) else alias[-1] for node in tree.find_all(jinja2.nodes.FromImport) for alias in node.names}
    imported |= {node.target for node in tree.find_all(jinja2.nodes.Import)}
    assert jinja2.meta.find_undeclared_variables(tree) <= allowed | imported | {"super"}  # blocks see what their file imports


@pytest.mark.parametrize("name", [name for name in TEMPLATES if not name.startswith("device/")])  # there operands have numbers
def test_text_stands_as_it_is_emitted(name):
    """Nothing is put together from strings, but the names of other templates."""
    tree, concat = parsed(name), jinja2.nodes.Concat
    imports = [*tree.find_all((jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Include))]
    assert len([*tree.find_all(concat)]) == sum(len([*found.find_all(concat)]) for found in imports)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if "/" in name and not name.startswith("kernels/")])
def test_a_skeleton_alone_knows_its_architecture(name):
    assert not re.search(r"\bsm_\d", (template_root() / name).read_text())


def test_parameters_of_macros_are_read():
    """All that their file calls; those of a name in several files, one of which the program names, share what they are given."""
    trees = {name: parsed(name) for name in TEMPLATES}
    imports = [found for tree in trees.values() for found in tree.find_all(jinja2.nodes.FromImport)]
    of_a_file = [found for found in imports if isinstance(found.template, jinja2.nodes.Const)]
    known = {(found.template.value, name if isinstance(name, str) else name[0]) for found in of_a_file for name in found.names}
    for file, tree in trees.items():
        known |= {(file, call.node.name) for call in tree.find_all(jinja2.nodes.Call) if isinstance(call.node, jinja2.nodes.Name)}
        for macro in tree.find_all(jinja2.nodes.Macro):
            read = {name.name for name in macro.find_all(jinja2.nodes.Name) if name.ctx == "load"}
            unread = {argument.name for argument in macro.args} - read
            assert not unread or (file, macro.name) not in known, (file, macro.name, unread)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_an_element_is_follows_from_its_dtype(name):
    """Its type, its bytes and what one product sums up are said by `flashgen/dtypes.py`; u16 is left to what reads words of bits."""
    text = (template_root() / name).read_text()
    assert not re.search(r"(?:STORED|COLUMNS|DIM|BLOCK_[MN]) \* 2\b|\bm64n\S*k16\b", text)
    assert "u16" not in text or name in OF_WORDS or name.startswith("arrays/") or "using u16" in text


@pytest.mark.parametrize("path", sorted((template_root() / "device").glob("*.cuh")), ids=lambda path: path.name)
def test_a_device_function_is_one_instruction(path):
    text = path.read_text()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "${" not in text
    assert "//%" not in text
    assert "__shared__" not in text
    for function in text.split("\n\n"):
        assert function.count("asm") <= 1 or function.count("asm") == function.count("__forceinline__"), function


def test_what_is_called_is_defined_once():
    for key, text in emitted().items():
        inside = text[text.index("namespace ptx {") : text.index("}  // namespace ptx")]
        defined = re.findall(r"__forceinline__ \S+ (\w+)\(", inside)
        called = set(re.findall(r"\bptx::(\w+)", text))
        assert called <= set(defined), (key, called - set(defined))
        assert len(defined) == len(set(defined)), key


def test_no_device_function_is_dead():
    every_function = "sqrt(abs(s)) + log(exp2(s)) + tanh(s) / (2 + max(min(s, 9.0), 1.0))"
    specs = [Spec(head_dim=d, dtype="float16", score=score) for d in (64, 72, 256) for score in ("s", every_function)]
    texts = [render(plan(spec, "sm_80", copy_bytes)).text for spec in specs for copy_bytes in (0, 2, 4, 8)]
    bias = {"score": "s + bias[b, kv_idx]", "tensors": {"bias": {"shape": ["b", "kv_len"], "dtype": "float32"}}}
    said = {"mask": "kv_idx == 4"}, bias, {"score": "s - 0.1 * abs(q_idx - kv_idx)"}
    others = [Spec(head_dim=64, dtype="float32"), *(Spec(head_dim=64, dtype="float16", **each) for each in said)]
    texts += [render(plan(spec, "sm_90a")).text for spec in others]
    called = set(re.findall(r"\bptx::(\w+)", "\n".join([*texts, *emitted().values()])))
    assert {name for file, items in vocabulary().items() if file != "division.cuh" for name in items} <= called


def tidy(key, text):
    assert text.endswith("}\n"), key
    assert "\n\n\n" not in text, key
    assert not re.search(r"\n\n *}(?!  //)|{\n\n *}", text), key
    assert "\t" not in text, key
    assert max(map(len, text.splitlines())) <= WIDTH, key
    assert not re.search(r" \n", text), key
    assert "${" not in text, key
    assert "//%" not in text, key
    assert not re.search(r"shared \+ \w+ \+ \d+ \*|\* 128\b", text), key  # places have names


def test_texts_are_tidy():
    for key, text in emitted().items():
        tidy(key, text)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("cache", [None, "contiguous", {"page": 1}, {"page": 64}], ids=str)
@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_texts_of_all_geometries_are_tidy(layout, cache, arch):
    if layout == "thd" and cache == "contiguous":
        return
    for mask, split in (("causal", "invariant"), ("full", 1), ("causal & (kv_idx % 3 != 1)", 2)):
        spec = Spec(head_dim=64, dtype="float16", mask=mask, layout=layout, cache=cache, split=split)
        tidy(spec, render(plan(spec, arch)).text)
