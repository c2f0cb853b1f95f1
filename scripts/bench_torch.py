# SPDX-License-Identifier: Apache-2.0
"""bench_torch.py - models of transformers with random weights in the shapes that whet knows by name.

What scripts/bench-h200 and scripts/bench-agentcompile share; torch is needed where a model is built,
not where this is imported.
"""
import contextlib
import time

SHAPES = {
    "llama-3.2-1b": dict(kind="llama", hidden_size=2048, num_hidden_layers=16, head_dim=64,
                         num_attention_heads=32, num_key_value_heads=8, intermediate_size=8192,
                         vocab_size=128256, rms_norm_eps=1e-5, rope_theta=5e5),
    "qwen3-1.7b": dict(kind="qwen3", hidden_size=2048, num_hidden_layers=28, head_dim=128,
                       num_attention_heads=16, num_key_value_heads=8, intermediate_size=6144,
                       vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1e6),
    "qwen3-4b": dict(kind="qwen3", hidden_size=2560, num_hidden_layers=36, head_dim=128,
                     num_attention_heads=32, num_key_value_heads=8, intermediate_size=9728,
                     vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1e6),
}


def build_model(name):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
    shape = dict(SHAPES[name])
    config = {"llama": LlamaConfig, "qwen3": Qwen3Config}[shape.pop("kind")](
        tie_word_embeddings=True, max_position_embeddings=40960, **shape)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def generate_seconds(model, batch, prompt, new, cudnn=True):
    """Of generate() with its default cache. Without cudnn, attention is another of torch's: cuDNN's makes a
    plan for each number of positions when it first meets it, 35 ms a token on an H200, and a text of 2048
    tokens meets as many."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    ids = torch.randint(10, 1000, (batch, prompt), device="cuda")
    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    torch.cuda.synchronize()
    begun = time.perf_counter()
    with torch.inference_mode(), contextlib.nullcontext() if cudnn else sdpa_kernel(kinds):
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new,
                             min_new_tokens=new, do_sample=False)
    torch.cuda.synchronize()
    assert out.shape[1] == prompt + new
    return time.perf_counter() - begun
