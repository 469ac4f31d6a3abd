"""Output tokens per second of the demo, beside transformers on the same prompts, device and dtype.

    python packages/qvllm-models/benchmarks/demo_throughput.py --count 64 --dtype float32

Both get the same held-out problems, greedy. transformers runs twice: all prompts as one left-padded batch, and one after
another. The median of three runs counts; the tokens of both engines are compared first.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qvllm_engine import LLM, SamplingParams
from qvllm_models.demos import QWEN3
from qvllm_models.demos.problems import chat_prompt, make_problems

MAX_TOKENS = 64
RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    prompts = [chat_prompt(problem) for problem in make_problems("mixed", args.count, seed=0)]
    systems = {
        "qvllm": run_qvllm(prompts, args.dtype, args.device),
        "transformers, one batch": run_transformers(prompts, args.dtype, args.device, len(prompts)),
        "transformers, one by one": run_transformers(prompts, args.dtype, args.device, 1),
    }
    expected = None
    print(f"torch {torch.__version__}, {args.device}, {args.dtype}, {args.threads} threads, {args.count} prompts")
    for name, run in systems.items():
        outputs = run()  # warms up
        expected = expected or outputs
        tokens = sum(map(len, outputs))
        seconds = statistics.median(timed(run, args.device) for _ in range(RUNS))
        same = sum(a == b for a, b in zip(outputs, expected, strict=True))
        rate = f"{tokens:6} tokens {seconds:8.2f} s {tokens / seconds:8.0f} tok/s"
        print(f"{name:26} {rate}   {same} of {len(prompts)} outputs equal")


def timed(run: Callable[[], list[list[int]]], device: str) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def run_qvllm(prompts: list[str], dtype: str, device: str) -> Callable[[], list[list[int]]]:
    # Without the prefix cache, so that later runs compute the prompts again, as transformers does.
    llm = LLM(QWEN3, dtype=dtype, device=device, enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    return lambda: [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def run_transformers(prompts: list[str], dtype: str, device: str, batch: int) -> Callable[[], list[list[int]]]:
    tokenizer = AutoTokenizer.from_pretrained(QWEN3, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(QWEN3, dtype=getattr(torch, dtype)).to(device).eval()
    stops = model.generation_config.eos_token_id

    def cut(ids: list[int]) -> list[int]:
        """Up to and with the first stop token: what follows is padding."""
        ends = [i for i, token in enumerate(ids) if token in stops]
        return ids[: ends[0] + 1] if ends else ids

    @torch.inference_mode()
    def run() -> list[list[int]]:
        outputs = []
        for start in range(0, len(prompts), batch):
            inputs = tokenizer(prompts[start : start + batch], return_tensors="pt", padding=True).to(device)
            ids = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)[:, inputs["input_ids"].shape[1] :]
            outputs += [cut(row) for row in ids.tolist()]
        return outputs

    return run


if __name__ == "__main__":
    main()
