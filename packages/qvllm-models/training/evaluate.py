"""Greedy accuracy of a checkpoint folder on held-out problems, with transformers.

python evaluate.py FOLDER --count 200 --dtype bfloat16 --device cuda
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qvllm_models.demos.problems import KINDS, Problem, chat_prompt, is_right, make_problems


@torch.inference_mode()
def replies(model: Any, tokenizer: Any, prompts: list[str], batch: int) -> list[list[int]]:
    """Greedy token ids for each prompt, the stop token included. Prompts of like length share a batch, padded on the left."""
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(encoded[i]))
    out: list[list[int]] = [[] for _ in prompts]
    stops = set(model.generation_config.eos_token_id)
    pad = model.generation_config.pad_token_id
    for at in range(0, len(order), batch):
        chosen = order[at : at + batch]
        width = max(len(encoded[i]) for i in chosen)
        ids = torch.full((len(chosen), width), pad)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(chosen):
            ids[row, width - len(encoded[i]) :] = torch.tensor(encoded[i])
            mask[row, width - len(encoded[i]) :] = 1
        options = {"max_new_tokens": 96, "do_sample": False, "temperature": None, "top_k": None, "top_p": None}
        made = model.generate(ids.to(model.device), attention_mask=mask.to(model.device), **options)[:, width:].tolist()
        for i, row in zip(chosen, made, strict=True):
            end = next((n + 1 for n, token in enumerate(row) if token in stops), len(row))
            out[i] = row[:end]
    return out


def evaluate(
    folder: Path, count: int, dtype: torch.dtype, device: str, thinking: bool, seed: int, batch: int
) -> dict[str, Any]:
    """Right answers per kind and the token lengths, over `count` held-out problems of all kinds in turn."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    model, info = loaded
    if any(info.values()):
        raise RuntimeError(f"{folder} does not load cleanly: {info}")
    model = model.to(device).eval()
    problems: list[Problem] = make_problems("mixed", count, seed)
    prompts = [chat_prompt(problem, thinking) for problem in problems]
    started = time.perf_counter()
    made = replies(model, tokenizer, prompts, batch)
    seconds = time.perf_counter() - started
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    wrong = []
    for problem, ids in zip(problems, made, strict=True):
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        total[problem.kind] += 1
        right[problem.kind] += is_right(problem, text)
        if not is_right(problem, text):
            wrong.append({"kind": problem.kind, "prompt": problem.prompt_text, "wanted": problem.solution, "got": text})
    return {
        "dtype": str(dtype),
        "thinking": thinking,
        "accuracy": sum(right.values()) / count,
        "right": {kind: f"{right[kind]}/{total[kind]}" for kind in KINDS},
        "prompt_tokens": sum(len(tokenizer(prompt)["input_ids"]) for prompt in prompts) / count,
        "reply_tokens": sum(len(ids) for ids in made) / count,
        "seconds": round(seconds, 2),
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--no-thinking", action="store_true", help="append the empty think block")
    parser.add_argument("--show-wrong", type=int, default=3)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    result = evaluate(args.folder, args.count, dtype, args.device, not args.no_thinking, args.seed, args.batch)
    result["wrong"] = result["wrong"][: args.show_wrong]
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
