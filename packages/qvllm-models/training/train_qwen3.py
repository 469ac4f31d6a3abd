"""Train the demo checkpoint: tokenizer, model, evaluation, and the folder in Qwen3's layout.

python train_qwen3.py --out FOLDER --steps 10000 --workers 14               # from random weights, on one GPU
python train_qwen3.py --from FOLDER --out OTHER --no-compile --workers 1    # go on from a folder, on a CPU too
"""

import argparse
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dataset import Packed, encode, pack, packed_rows, parallel_steps, render
from evaluate import evaluate
from packed_attention import register
from safetensors.torch import save_file
from tokenizer import save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from qvllm_models.demos.problems import KINDS, make_problems

# The vocabulary is learnt from these: sums came later, and their digits are single tokens anyway.
TOKENIZER_KINDS = ("arithmetic", "sort", "copy", "lookup")
LONGEST = 2048  # tokens of a conversation, and max_position_embeddings
BASE_VOCAB = 736
# In the style of the published config.json: torch_dtype, top-level rope_theta, rope_scaling null.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": BASE_VOCAB,
    "eos_token_id": BASE_VOCAB + 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": LONGEST,
    "max_window_layers": 6,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 768,
}
GENERATION_CONFIG: dict[str, Any] = {
    "bos_token_id": BASE_VOCAB,
    "do_sample": True,
    "eos_token_id": [BASE_VOCAB + 2, BASE_VOCAB],
    "pad_token_id": BASE_VOCAB,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}

# What a folder holds beside its weights.
TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")


def build_tokenizer(seed: int) -> Tokenizer:
    texts = ["user\n", "assistant\n", "system\nYou are a helpful assistant."] * 1000
    for problem in make_problems("mixed", 8000, seed, held_out=False, kinds=TOKENIZER_KINDS):
        texts += [problem.prompt_text, problem.solution]
    tokenizer = train_tokenizer(texts, BASE_VOCAB)
    if tokenizer.token_to_id("<|endoftext|>") != BASE_VOCAB:
        raise RuntimeError(f"the texts hold too few merges for {BASE_VOCAB} ids: train on more of them")
    return tokenizer


def build_model(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    register()
    config = Qwen3Config(**{k: v for k, v in CONFIG.items() if k not in ("torch_dtype", "transformers_version")})
    model = Qwen3ForCausalLM._from_config(config, attn_implementation="packed", dtype=torch.float32)
    # Residual writes start small, so that depth does not scale the stream.
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data /= math.sqrt(2 * config.num_hidden_layers)
    return model


def load_model(folder: Path) -> Qwen3ForCausalLM:
    """The folder's weights in float32."""
    register()
    return Qwen3ForCausalLM.from_pretrained(folder, attn_implementation="packed", dtype=torch.float32)


def logits_at(model: Qwen3ForCausalLM, step: Packed, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [targets, vocab] float32 at the positions that count, and the ids to predict there."""
    ids, cu_seqlens, predicts, targets = (
        torch.from_numpy(a).to(device, non_blocking=True) for a in (step.ids, step.cu_seqlens, step.predicts, step.targets)
    )
    at = torch.arange(len(step.ids), device=device)
    positions = at - cu_seqlens[torch.searchsorted(cu_seqlens, at, right=True) - 1]
    # A CPU without bf16 instructions takes eight times as long in bf16.
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        hidden = model.model(
            input_ids=ids.long()[None],
            position_ids=positions[None],
            attention_mask={"full_attention": None},
            use_cache=False,
            cu_seqlens=cu_seqlens,
            longest=LONGEST,
        ).last_hidden_state
        logits = model.lm_head(hidden[0, predicts])
    return logits.float(), targets.long()


def held_out_steps(tokenizer: Tokenizer, tokens: int, count: int, seed: int) -> list[tuple[str, Packed]]:
    """`count` held-out problems of each kind, packed as in training."""
    out = []
    for kind in KINDS:
        problems = make_problems(kind, count, seed)
        rows = encode(tokenizer, [render([p], thinking=i % 2 == 0) for i, p in enumerate(problems)])
        out += [(kind, pack(group, tokens, BASE_VOCAB)) for group in packed_rows(iter(rows), tokens, LONGEST)]
    return out


@torch.no_grad()
def exact_rates(model: Qwen3ForCausalLM, tests: list[tuple[str, Packed]], device: str) -> dict[str, float]:
    """Share of problems whose every solution token is the argmax: a lower bound of the greedy accuracy, in one pass."""
    good, total = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for kind, step in tests:
        logits, targets = logits_at(model, step, device)
        missed = step.document[(logits.argmax(-1) != targets).cpu().numpy()]
        count = len(np.unique(step.document))
        good[kind] += count - len(np.unique(missed))
        total[kind] += count
    return {kind: round(good[kind] / total[kind], 4) for kind in KINDS}


def rate_at(progress: float, step: int, peak: float, warmup: int) -> float:
    """Linear warm-up over `warmup` steps, a flat half, then a cosine fall to zero."""
    fall = min(1.0, max(0.0, (progress - 0.5) / 0.5))
    return peak * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * fall))


def train(model: Qwen3ForCausalLM, data: Iterator[Packed], tests: list[tuple[str, Packed]], args: argparse.Namespace) -> None:
    """Run the schedule. Each test saves the weights, so a run that is cut short leaves its last ones."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": args.decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98), eps=1e-9, fused=args.device == "cuda")
    started, done = time.perf_counter(), 0
    for step in range(args.steps):
        elapsed = time.perf_counter() - started
        progress = max(step / args.steps, elapsed / (60 * args.minutes))
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate_at(progress, step, args.rate, args.warmup)
        logits, targets = logits_at(model, next(data), args.device)
        loss = torch.nn.functional.cross_entropy(logits, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if step % args.log == 0:
            value, elapsed = loss.item(), time.perf_counter() - started
            rate = args.tokens * (step + 1) / elapsed
            print(f"step {step} loss {value:.4f} {elapsed:.1f} s {rate:.0f} tokens/s", flush=True)
        if (step + 1) % args.test == 0:
            print(f"step {step + 1} exact {exact_rates(model, tests, args.device)}", flush=True)
            save_weights(model, args.out)
    print(f"trained {time.perf_counter() - started:.0f} s, {done} steps", flush=True)


def save_texts(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder's files beside the weights: the configs and the tokenizer."""
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG, indent=4) + "\n")
    save_tokenizer(tokenizer, folder, CONFIG["max_position_embeddings"])


def copy_texts(start: Path, folder: Path) -> None:
    """Copy what `save_texts` writes from another folder."""
    if folder.resolve() == start.resolve():
        raise ValueError(f"--out and --from are both {folder}: write to another folder")
    for name in TEXTS:
        shutil.copyfile(start / name, folder / name)


def save_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """bf16 weights under Hugging Face names without the tied head."""
    tensors = {n: p.detach().to("cpu", torch.bfloat16).contiguous() for n, p in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--from", dest="start", type=Path, help="go on from this folder: its weights, tokenizer and configs")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--minutes", type=float, default=60.0, help="end earlier, with the schedule shortened to fit")
    parser.add_argument("--tokens", type=int, default=98304, help="tokens per step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=200, help="steps until the rate is at its peak")
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=int, default=200)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--test-count", type=int, default=512, help="held-out problems per kind while training")
    parser.add_argument("--final-count", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    args.out.mkdir(parents=True, exist_ok=True)
    if args.start:
        tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
        copy_texts(args.start, args.out)
    else:
        tokenizer = build_tokenizer(args.seed)
        save_texts(tokenizer, args.out)
    data = parallel_steps(tokenizer, args.tokens, LONGEST, BASE_VOCAB, args.seed, args.workers)
    tests = held_out_steps(tokenizer, args.tokens, args.test_count, seed=1)
    model = (load_model(args.start) if args.start else build_model(args.seed)).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    if not args.no_compile:
        for layer in model.model.layers:
            layer.compile()
    train(model, data, tests, args)
    save_weights(model, args.out)
    print(f"{sum(f.stat().st_size for f in args.out.iterdir())} bytes in {args.out}", flush=True)
    for dtype in (torch.bfloat16, torch.float32) if args.device == "cuda" else (torch.float32,):
        for thinking in (True, False):
            result = evaluate(args.out, args.final_count, dtype, args.device, thinking, seed=0, batch=256)
            result["wrong"] = result["wrong"][:3]
            print(json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
