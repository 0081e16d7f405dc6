"""Models of vLLM, where it is installed, with flashgen's backend over steps of a server: logits are those of transformers' `eager`.

vLLM runs here as it does without a device: its models, layers, rotary embeddings and caches are its own, its kernels native PyTorch.
"""

import importlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("vllm.v1.attention.backend")

from safetensors.torch import load_file  # noqa: E402
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.config.device import DeviceConfig  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.forward_context import set_forward_context  # noqa: E402
from vllm.model_executor.custom_op import CustomOp  # noqa: E402

from flashgen.vllm.backend import BatchBuilder, FlashgenBackend, FlashgenImpl  # noqa: E402
from tests.vllm.test_backend import common  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="models are built as where there is no device")
SMALL = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
HEADS = {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128}
MODELS = {
    "Llama": HEADS,
    "Gemma2": {**HEADS, "sliding_window": 6, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "Bloom": {"n_head": 4, "n_layer": 2},
}
PROMPTS, PAGES = (21, 5, 1), torch.tensor([[3, 7, 1], [9, 2, 5], [12, 0, 4]], dtype=torch.int32)


@pytest.fixture(scope="module", autouse=True)
def world():
    config = VllmConfig(device_config=DeviceConfig("cpu"))
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{29500 + torch.randint(9000, ()).item()}", 0, "gloo")
        initialize_model_parallel(1, 1)
    yield
    importlib.import_module("vllm.distributed").cleanup_dist_env_and_memory()


@pytest.fixture(params=MODELS)
def models(request, tmp_path, monkeypatch):
    """transformers' model, and vLLM's with its weights and its config."""
    torch.manual_seed(0)
    dtype = "bfloat16" if request.param == "Gemma2" else "float16"  # vLLM wants it so
    config = getattr(transformers, f"{request.param}Config")(**{**SMALL, **MODELS[request.param]})
    theirs = getattr(transformers, f"{request.param}ForCausalLM")._from_config(
        config, attn_implementation="eager", dtype=getattr(torch, dtype)
    )
    theirs.save_pretrained(tmp_path)
    monkeypatch.setattr("vllm.model_executor.layers.attention.attention.get_attn_backend", lambda *_, **__: FlashgenBackend)
    model = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, dtype=dtype, enforce_eager=True, max_model_len=128)
    given = VllmConfig(model_config=model, device_config=DeviceConfig("cpu"))
    kind = getattr(importlib.import_module(f"vllm.model_executor.models.{request.param.lower()}"), f"{request.param}ForCausalLM")
    with set_current_vllm_config(given):
        before = torch.get_default_dtype()
        torch.set_default_dtype(theirs.dtype)
        ours = kind(vllm_config=given)
        torch.set_default_dtype(before)
    ours.load_weights(load_file(tmp_path / "model.safetensors").items())
    for part in ours.modules():
        if isinstance(part, CustomOp):
            part._forward_method = part.forward_native
    return theirs.eval(), ours, given


def test_logits_over_steps(models):
    theirs, ours, config = models
    layers = config.compilation_config.static_forward_context
    assert all(isinstance(layer.impl, FlashgenImpl) for layer in layers.values())
    for layer in layers.values():
        layer.kv_cache = torch.full((16, layer.num_kv_heads, 16, 2 * layer.head_size), torch.nan, dtype=theirs.dtype)
    builder = BatchBuilder(None, list(layers), config, torch.device("cpu"))
    sequences = [torch.randint(64, (n,)).tolist() for n in PROMPTS]
    new = [list(sequence) for sequence in sequences]
    for _ in range(4):  # prompts, then single tokens
        metadata = builder.build(0, common([len(part) for part in new], [len(whole) for whole in sequences], PAGES))
        places = [torch.arange(len(whole) - len(part), len(whole)) for whole, part in zip(sequences, new, strict=True)]
        step = set_forward_context(dict.fromkeys(layers, metadata), config, slot_mapping={})
        with torch.inference_mode(), set_current_vllm_config(config), step:
            hidden = ours(torch.tensor([token for part in new for token in part]), torch.cat(places), None)
            found = ours.compute_logits(hidden[metadata.cu_seqlens_q[1:].long() - 1]).float()
        with torch.no_grad():
            want = torch.stack([theirs(torch.tensor([whole])).logits[0, -1].float() for whole in sequences])
        assert (found - want).abs().max() <= 10 * torch.finfo(theirs.dtype).eps * want.abs().max()
        new = [[token] for token in want.argmax(-1).tolist()]
        sequences = [whole + part for whole, part in zip(sequences, new, strict=True)]
