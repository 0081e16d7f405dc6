"""Models of transformers with small random weights, where it is installed: logits and greedy generation are those of `eager`."""

import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flashgen.transformers  # noqa: E402
from flashgen.transformers.layer import layer  # noqa: E402

torch.set_num_threads(1)  # models are too small for more

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
WINDOW = 6
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 8,
}  # fmt: skip
DECODERS = {
    "Llama": {},
    "Mistral": {"sliding_window": WINDOW},
    "Gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "Gemma3": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "GptOss": {"sliding_window": WINDOW, **EXPERTS},
    "Qwen3": {},
    "DeepseekV3": LATENT,
    "Phi3": {"sliding_window": WINDOW},
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def models(config, kind):
    """The same model with `eager` and with flashgen's attention."""
    found = []
    for attention in ("eager", flashgen.transformers.register()):
        torch.manual_seed(0)
        found.append(kind._from_config(config(), attn_implementation=attention).eval())
    return found


def decoders(name):
    config = getattr(transformers, CONFIGS.get(name, f"{name}Config"))
    return models(lambda: config(**(SMALL | DECODERS[name])), getattr(transformers, f"{name}ForCausalLM"))


def tokens(batch=2, length=11):
    return torch.randint(2, 64, (batch, length), generator=torch.Generator().manual_seed(length))


def close(found, want):
    assert torch.allclose(found, want, atol=2e-5, rtol=2e-5), (found - want).abs().max()


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_eager(name):
    eager, ours = decoders(name)
    assert ours.config._attn_implementation == flashgen.transformers.NAME
    close(ours(tokens()).logits, eager(tokens()).logits)
    padded = torch.ones(2, 11, dtype=torch.int64)
    padded[0, :4] = 0
    found, want = (model(tokens(), attention_mask=padded).logits for model in (ours, eager))
    close(found[padded == 1], want[padded == 1])


@torch.no_grad()
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_generation_is_that_of_eager(name, cache):
    padded = torch.ones(2, 5, dtype=torch.int64)
    padded[0, :2] = 0
    options = {"max_new_tokens": 9, "do_sample": False, "cache_implementation": cache, "attention_mask": padded}
    eager, ours = (model.generate(tokens(length=5), **options) for model in decoders(name))
    assert torch.equal(ours, eager)


@torch.no_grad()
def test_logits_of_t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
    config = lambda: transformers.T5Config(vocab_size=64, decoder_start_token_id=0, pad_token_id=0, **sizes)  # noqa: E731
    eager, ours = models(config, transformers.T5ForConditionalGeneration)
    padded = torch.ones(2, 11, dtype=torch.int64)
    padded[0, 7:] = 0
    given = {"input_ids": tokens(), "decoder_input_ids": tokens(length=6), "attention_mask": padded}
    close(ours(**given).logits, eager(**given).logits)
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": padded}
    assert torch.equal(ours.generate(tokens(), **options), eager.generate(tokens(), **options))


@torch.no_grad()
def test_logits_of_bert():
    eager, ours = models(lambda: transformers.BertConfig(**SMALL), transformers.BertForMaskedLM)
    padded = torch.ones(2, 11, dtype=torch.int64)
    padded[0, 7:] = 0
    found, want = (model(tokens(), attention_mask=padded).logits for model in (ours, eager))
    close(found[padded == 1], want[padded == 1])


@torch.no_grad()
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_packed_positions(name):
    eager, ours = decoders(name)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]])
    found, want = (model(tokens(), position_ids=positions, use_cache=False).logits for model in (ours, eager))
    close(found, want)
    assert not torch.allclose(found, ours(tokens(), use_cache=False).logits)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_of_the_callers_own(kind):
    eager, ours = decoders("Llama")
    seen = torch.rand(2, 1, 11, 11, generator=torch.Generator().manual_seed(1)) < 0.5
    seen |= torch.eye(11, dtype=torch.bool)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    close(ours(tokens(), attention_mask=seen if kind == "bool" else added).logits, eager(tokens(), attention_mask=added).logits)


@torch.no_grad()
def test_tensors_of_a_layer_are_read_in_the_dtype_that_they_have():
    random = torch.Generator().manual_seed(0)
    drawn = lambda *shape: torch.randn(shape, generator=random).bfloat16()  # noqa: E731
    q, k, v, mask = drawn(2, 4, 9, 16), drawn(2, 2, 9, 16), drawn(2, 2, 9, 16), drawn(2, 1, 9, 9)
    given = {"s_aux": drawn(4), "position_bias": drawn(1, 4, 9, 9)}
    call = lambda mask, given: layer(torch.nn.Module(), q, k, v, mask, **given)[0]  # noqa: E731
    wide = {name: x.float() for name, x in given.items()}
    assert torch.equal(call(mask, given), call(mask.float(), wide))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would take the call, and has no backward of float32")
def test_gradients_are_those_of_eager():
    found = []
    for model in decoders("Llama"):
        model(tokens(), labels=tokens()).loss.backward()
        found.append([x.grad for x in model.parameters()])
    for ours, eager in zip(*found, strict=True):
        close(ours, eager)


@torch.no_grad()
def test_a_compiled_model():
    torch._dynamo.reset()
    eager, ours = decoders("Llama")
    compiled = torch.compile(ours, backend="aot_eager")
    close(compiled(tokens(), use_cache=False).logits, eager(tokens(), use_cache=False).logits)


@torch.no_grad()
def test_a_step_of_a_static_cache_is_one_graph():
    torch._dynamo.reset()
    found = []
    for model in decoders("Gemma2"):
        named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # until transformers 5.24
        cache = {named: transformers.StaticCache(config=model.config, max_cache_len=24)}
        model(tokens(length=5), **cache)
        forward = torch.compile(model.forward, fullgraph=True, backend="eager") if found else model.forward
        for step in range(2):
            seen = torch.ones(2, 6 + step, dtype=torch.int64)
            given = model.prepare_inputs_for_generation(tokens(length=1), **cache, attention_mask=seen, is_first_iteration=False)
            logits = forward(**given).logits
        found.append(logits)
    close(*found)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("Bloom", {"n_head": 4, "n_layer": 2}), ("XGLM", {"d_model": 32, "attention_heads": 4, "num_layers": 2, "ffn_dim": 32})],
)
def test_models_that_know_no_other_attention_are_told(name, sizes):
    config = getattr(transformers, f"{name}Config")(**(SMALL | sizes))
    _, ours = models(lambda: config, getattr(transformers, f"{name}ForCausalLM"))
    with pytest.raises((ValueError, AttributeError), match="take attn_implementation='eager'"):
        ours(tokens())


def test_what_is_refused():
    _, ours = decoders("Llama")
    with pytest.raises(ValueError, match="output_attentions"):
        ours(tokens(), output_attentions=True)
    ours.config.attention_dropout = 0.1
    for one in ours.model.layers:
        one.self_attn.attention_dropout = 0.1
    with pytest.raises(ValueError, match="dropout is"):
        ours.train()(tokens())
