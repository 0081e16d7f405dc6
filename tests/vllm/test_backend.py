"""The backend in vLLM's own classes, where vLLM is installed: its registry, its checks of a layer, its builder, and its Attention layer."""

import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm.v1.attention.backend")

from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.config.device import DeviceConfig  # noqa: E402
from vllm.forward_context import set_forward_context  # noqa: E402
from vllm.model_executor.layers.attention import Attention  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

import flashgen.vllm  # noqa: E402
from flashgen.vllm.backend import BatchBuilder, FlashgenBackend, FlashgenImpl  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, KV_HEADS, D, PAGE = 4, 2, 16, 16
REFUSED = {
    "attn_type is encoder_only": {"attn_type": "encoder_only"},
    "kv_cache_dtype is fp8": {"kv_cache_dtype": "fp8"},
    r"sinks has shape \[3\]: expected \[4\]": {"sinks": torch.zeros(3)},
}
LAYER = {"head_size": 64, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "attn_type": "decoder"}
WITHOUT = dict.fromkeys(("use_mla", "has_sink", "use_sparse", "use_mm_prefix", "use_per_head_quant_scales"), False)
UNSUPPORTED = {
    "head_size": {"head_size": 60},
    "dtype": {"dtype": torch.float32},
    "kv_cache_dtype": {"kv_cache_dtype": "fp8"},
    "block_size": {"block_size": 24},
    "MLA": {"use_mla": True},
    "attention type": {"attn_type": "encoder_decoder"},
    "compute capability": {"device_capability": DeviceCapability(7, 5)},
    "non-causal": {"use_non_causal": True},
}


@pytest.fixture(scope="module")
def config():
    return VllmConfig(device_config=DeviceConfig(DEVICE))


def common(new, lens, table, **more):
    """Makes what vLLM says of a step."""
    starts = torch.tensor([0, *new]).cumsum(0, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(DEVICE),
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=DEVICE),
        num_reqs=len(new),
        num_actual_tokens=sum(new),
        max_query_len=max(new),
        max_seq_len=max(lens),
        block_table_tensor=table,
        slot_mapping=torch.zeros(sum(new), dtype=torch.int64, device=DEVICE),
        **more,
    )


def test_the_entry_point_registers_the_backend():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["entry-points"]["vllm.general_plugins"] == {"flashgen": "flashgen.vllm:register"}
    flashgen.vllm.register()
    flashgen.vllm.register()  # in a process that has loaded plug-ins before
    assert AttentionBackendEnum.CUSTOM.get_class() is FlashgenBackend
    assert AttentionBackendEnum[FlashgenBackend.get_name()] is AttentionBackendEnum.CUSTOM


def test_another_plug_in_keeps_what_it_has_taken(monkeypatch):
    monkeypatch.setattr("vllm.v1.attention.backends.registry._ATTN_OVERRIDES", {AttentionBackendEnum.CUSTOM: "theirs.Backend"})
    with pytest.warns(UserWarning, match="CUSTOM is theirs.Backend already"):
        flashgen.vllm.register()
    assert AttentionBackendEnum.CUSTOM.get_path() == "theirs.Backend"


def reasons(**more):
    return FlashgenBackend.validate_configuration(**{**LAYER, **WITHOUT, "device_capability": DeviceCapability(9, 0), **more})


def test_vllm_finds_layers_supported():
    assert not reasons()
    assert not reasons(has_sink=True, has_sliding_window=True, head_size=256, dtype=torch.float16, block_size=528)


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_vllm_finds_layers_unsupported(what):
    (reason,) = reasons(**UNSUPPORTED[what])
    assert what in reason


@pytest.mark.parametrize("message", REFUSED)
def test_layers_are_refused_by_name(message):
    with pytest.raises((NotImplementedError, ValueError), match=message):
        FlashgenImpl(HEADS, D, 1.0, KV_HEADS, **REFUSED[message])


def test_batches_that_are_not_causal_are_refused(config):
    builder = BatchBuilder(None, ["0"], config, torch.device(DEVICE))
    with pytest.raises(NotImplementedError, match="is causal"):
        builder.build(0, common([1], [1], None, causal=False))


def test_without_metadata_outputs_are_zeros():
    q = torch.ones(3, HEADS, D)
    assert not FlashgenImpl(HEADS, D, 1.0, KV_HEADS).forward(None, q, q, q, torch.empty(0), None, torch.full_like(q, torch.nan)).any()


@pytest.mark.parametrize("new", [(5, 1, 3), (1, 1, 1)])
def test_attention_of_vllm_runs_on_it(config, new):
    """Two steps of three sequences through vLLM's own layer, beside PyTorch's attention of each sequence."""
    torch.manual_seed(0)
    with set_current_vllm_config(config):
        layer = Attention(HEADS, D, 0.25, KV_HEADS, prefix=f"layers.{new[0]}.attn", attn_backend=FlashgenBackend)
    layer.kv_cache = torch.full((9, KV_HEADS, PAGE, 2 * D), torch.nan, dtype=torch.float16, device=DEVICE)
    table = torch.tensor([[4, 8], [1, 0], [7, 2]], dtype=torch.int32, device=DEVICE)
    builder, seen = layer.attn_backend.get_builder_cls()(None, [layer.layer_name], config, torch.device(DEVICE)), [[], [], []]
    for step in (18, 1, 9), new:
        q, k, v = (torch.randn(sum(step), h * D).to(DEVICE, torch.float16) for h in (HEADS, KV_HEADS, KV_HEADS))
        for rows, *parts in zip(seen, *(x.view(len(x), -1, D).split(step) for x in (k, v)), strict=True):
            rows.append(parts)
        metadata = builder.build(0, common(step, [sum(len(k) for k, _ in rows) for rows in seen], table))
        with set_forward_context({layer.layer_name: metadata}, config, slot_mapping={}):
            found = layer(q, k, v).view(-1, HEADS, D)
    for queries, rows, o in zip(q.view(-1, HEADS, D).split(step), seen, found.split(step), strict=True):
        k, v = (torch.cat(parts).transpose(0, 1) for parts in zip(*rows, strict=True))
        mask = torch.ones(len(queries), k.shape[1], dtype=torch.bool, device=DEVICE).tril(k.shape[1] - len(queries))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        want = sdpa(queries.transpose(0, 1).float(), k.float(), v.float(), mask, scale=0.25, enable_gqa=True).transpose(0, 1)
        assert (o.float() - want).abs().max() < 4e-3
