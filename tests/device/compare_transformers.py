#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits of whet's cuda backend against transformers, on a GPU.

    compare_transformers.py TEST_DEVICE [MODEL...] [--context 64,200,4096]

For each shape a model with seeded random weights is saved in bf16. Three runs on the same tokens:
transformers in float32 (the reference), transformers in bfloat16, and whet (prompt and decode).
Accepted: whet's relative RMS error is at most 1.5 times that of transformers' own bfloat16 run, and
greedy tokens agree wherever the reference's two best differ by more than that run's noise. Looked at
are the last 64 positions: of a text of 64 tokens all contexts from 1 on, with the first page's border.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM

LAST, PART = 64, 1024  # a last part has LAST tokens or more
ROPE3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}


def config(kind, layers, hidden, heads, kv, head, ffn, vocab, eps, theta, tied=True, rope=None):
    cls = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[kind]
    more = {} if kind == "qwen2" else {"head_dim": head}
    parameters = dict(rope or {"rope_type": "default"}, rope_theta=theta)
    return cls(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
               num_key_value_heads=kv, intermediate_size=ffn, vocab_size=vocab, rms_norm_eps=eps,
               rope_parameters=parameters, tie_word_embeddings=tied, attention_bias=False,
               max_position_embeddings=40960, **more)


SHAPES = {
    "small-llama": config("llama", 4, 512, 8, 2, 64, 1408, 4096, 1e-5, 5e5, False, ROPE3),
    "small-qwen2": config("qwen2", 4, 448, 7, 1, 64, 1216, 4096, 1e-6, 1e6),
    "small-qwen3": config("qwen3", 4, 512, 8, 4, 128, 1408, 4096, 1e-6, 1e6),
    "llama-3.2-1b": config("llama", 16, 2048, 32, 8, 64, 8192, 128256, 1e-5, 5e5, True, ROPE3),
    "qwen3-1.7b": config("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 1e-6, 1e6),
    "qwen3-4b": config("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, 1e-6, 1e6),
}
MODELS = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM, "qwen3": Qwen3ForCausalLM}


def make(cfg):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = MODELS[cfg.model_type](cfg)
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:  # gains and biases that are not 1 and 0
                p.add_(torch.randn_like(p) * (0.3 if name.endswith("bias") else 0.1))
    return model.eval()


def logits(cfg, path, dtype, tokens):
    """Of a model loaded afresh: converting one in place would round its rotary frequencies, too.
    In float32 attention has its scores in memory: a long text comes in parts, by the cache."""
    model = MODELS[cfg.model_type].from_pretrained(path, dtype=dtype).cuda().eval()
    part = PART if dtype == torch.float32 else len(tokens)
    cache = None
    with torch.no_grad():
        for at in range(0, len(tokens), part):
            out = model(tokens[None, at:at + part], past_key_values=cache, use_cache=True,
                        logits_to_keep=LAST)
            cache = out.past_key_values
    return out.logits[0].float()


def rms(a, b):
    return ((a - b).pow(2).mean() / b.pow(2).mean()).sqrt().item()


def greedy(got, want, noise):
    """Rows whose best tokens must agree, and how many do."""
    top = want.topk(2).values
    clear = (top[:, 0] - top[:, 1]) > 4 * noise
    same = got.argmax(-1) == want.argmax(-1)
    return int((clear & same).sum()), int(clear.sum())


def compare(program, name, contexts):
    cfg, bad = SHAPES[name], 0
    model = make(cfg)
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d, safe_serialization=True)
        del model
        for n in contexts:
            tokens = torch.randint(0, cfg.vocab_size, (n,), device="cuda")
            tokens.cpu().numpy().astype("int32").tofile(f"{d}/tokens")
            half = logits(cfg, d, torch.bfloat16, tokens)
            want = logits(cfg, d, torch.float32, tokens)
            torch.cuda.empty_cache()  # whet takes what it needs beside this process
            subprocess.run([program, "logits", d, f"{d}/tokens", f"{d}/logits"], check=True,
                           stderr=subprocess.DEVNULL)
            raw = numpy.fromfile(f"{d}/logits", dtype="float32").reshape(2, LAST, cfg.vocab_size)
            got = torch.from_numpy(raw).cuda()
            theirs, prompt, decode = rms(half, want), rms(got[0], want), rms(got[1], want)
            noise = (half - want).std().item()
            p, d_, all_ = *greedy(got[0], want, noise)[:1], *greedy(got[1], want, noise)
            ok = max(prompt, decode) <= 1.5 * theirs and p == all_ and d_ == all_
            bad += not ok
            print(f"{'ok  ' if ok else 'FAIL'} {name} context {n}: transformers bf16 {theirs:.5f}, "
                  f"whet prompt {prompt:.5f} decode {decode:.5f} "
                  f"({max(prompt, decode) / theirs:.2f}x); greedy {p} and {d_} of {all_}", flush=True)
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("model", nargs="*", default=[])
    p.add_argument("--context", default="64,200,1000,4096,32768")
    a = p.parse_args()
    contexts = [int(c) for c in a.context.split(",")]
    torch.backends.cuda.matmul.allow_tf32 = False
    models = a.model or list(SHAPES)
    bad = sum(compare(os.path.abspath(a.program), m, contexts) for m in models)
    print(f"{len(models) * len(contexts)} checks, {bad} failed")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
