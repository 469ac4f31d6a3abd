"""Thirty requests through transformers' own generate loop, one at a time, and through one ``LLM.generate`` call: equal ids.

The float32 model, the loop, the stop strings, and every change to the scores are transformers', except that presence and
frequency penalties, which it lacks, and the draw are written down here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StoppingCriteriaList,
    StopStringCriteria,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qvllm_engine import LLM, RequestOutput, SamplingParams
from qvllm_engine.errors import ArgumentError
from qvllm_models.demos import QWEN3
from qvllm_models.demos.problems import chat_prompt, make_problems

BAN = float("-inf")


# ------------------------------------------------------------------------------------------------------ reference
def philox(seed: int, step: int, quads: int) -> np.ndarray:
    """Philox4x32-10 with ``seed`` as its key on the counters (quad, step, 0, 0): ``[quads, 4]`` uint64, words of 32 bits."""
    mask = np.uint64(0xFFFFFFFF)
    c = [np.arange(quads, dtype=np.uint64), *(np.full(quads, value, dtype=np.uint64) for value in (step, 0, 0))]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & mask, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1)


def gumbel(seed: int, step: int, vocab: int) -> Tensor:
    """A standard Gumbel number per id: ``[vocab]`` float64."""
    words = philox(seed, step, -(-vocab // 4)).reshape(-1)[:vocab]
    u = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    return torch.from_numpy(-np.log(-np.log1p(-u.astype(np.float64))))


@dataclass
class PresenceAndFrequency(LogitsProcessor):
    """OpenAI's penalties on the tokens after the prompt."""

    prompt_length: int
    presence: float
    frequency: float

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for token in set(output := input_ids[0, self.prompt_length :].tolist()):
            scores[0, token] -= self.presence + self.frequency * output.count(token)
        return scores


@dataclass
class Draw(LogitsProcessor):
    """Adds the noise whose argmax is the draw, and notes how close the choice was."""

    prompt_length: int
    seed: int | None
    margin: float = float("inf")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.seed is not None:
            scores = scores + gumbel(self.seed, input_ids.shape[1] - self.prompt_length, scores.shape[1])[None]
        best = scores[0].topk(2).values
        self.margin = min(self.margin, float(best[0] - best[1]))
        return scores


def processors(params: SamplingParams, prompt_length: int, stop_ids: list[int], vocab: int) -> LogitsProcessorList:
    """transformers' processors of these settings, in our order."""
    chain = LogitsProcessorList()
    if params.logit_bias:
        chain.append(SequenceBiasLogitsProcessor([[[i], float(value)] for i, value in params.logit_bias.items()]))
    if params.allowed_token_ids:
        chain.append(SuppressTokensLogitsProcessor(sorted(set(range(vocab)) - set(params.allowed_token_ids)), device="cpu"))
    if params.min_tokens and stop_ids:
        chain.append(MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, stop_ids, device="cpu"))
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        chain.append(PresenceAndFrequency(prompt_length, params.presence_penalty, params.frequency_penalty))
    if params.temperature:
        chain.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k > 0:
            chain.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            chain.append(TopPLogitsWarper(params.top_p))
        if params.min_p > 0:
            chain.append(MinPLogitsWarper(params.min_p))
    return chain


@dataclass(frozen=True)
class AfterMinTokens:
    """Stop strings that count from some token on, which transformers' criterion can't."""

    criterion: StopStringCriteria
    length: int

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        met = self.criterion(input_ids, scores, **kwargs)
        return met if input_ids.shape[1] > self.length else torch.zeros_like(met)


@dataclass(frozen=True)
class Expected:
    """What transformers makes of a request."""

    token_ids: list[int]
    text: str
    stop_reason: int | str | None
    logprobs: Tensor  # [tokens, vocab] float32, of the model's own scores
    margin: float


@dataclass(frozen=True)
class Setup:
    """One checkpoint, four prompts for it, and transformers' model and tokenizer."""

    folder: Path
    prompts: list[list[int]]
    reference: Any
    tokenizer: Any

    def text(self, ids: list[int], skip: bool = True) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))

    def run(self, prompt: list[int], params: SamplingParams) -> Expected:
        stop_ids = list(params.stop_token_ids)
        stop_ids += [] if params.ignore_eos else [self.tokenizer.eos_token_id, self.tokenizer.pad_token_id]
        draw = Draw(len(prompt), params.seed if params.temperature else None)
        criteria: Any = StoppingCriteriaList([EosTokenCriteria(stop_ids)] if stop_ids else [])
        if params.stop_strings:
            strings = StopStringCriteria(self.tokenizer, list(params.stop_strings))
            criteria.append(AfterMinTokens(strings, len(prompt) + params.min_tokens))
        ids = torch.tensor([prompt])
        made = self.reference.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=params.max_tokens,
            logits_processor=[*processors(params, len(prompt), stop_ids, self.reference.model.config.vocab_size), draw],
            stopping_criteria=criteria,
            return_dict_in_generate=True,
            output_logits=True,
        )
        token_ids = made.sequences[0, len(prompt) :].tolist()
        text, reason = self.end(token_ids, stop_ids, params)
        return Expected(token_ids, text, reason, torch.log_softmax(torch.cat(made.logits).float(), -1), draw.margin)

    def end(self, token_ids: list[int], stop_ids: list[int], params: SamplingParams) -> tuple[str, int | str | None]:
        """The text that is left of the tokens, and what ended them."""
        include = params.include_stop_str_in_output
        if token_ids[-1] in stop_ids:
            return self.text(token_ids if include else token_ids[:-1], params.skip_special_tokens), token_ids[-1]
        text = self.text(token_ids, params.skip_special_tokens)
        counting_from = len(self.text(token_ids[:-1], params.skip_special_tokens).rstrip("\ufffd"))
        found = [(text.find(stop, max(0, counting_from - len(stop) + 1)), stop) for stop in params.stop_strings]
        found = sorted((start, stop) for start, stop in found if start >= 0)
        if not found or len(token_ids) <= params.min_tokens:
            return text, None
        start, stop = found[0]
        return text[: start + len(stop) * include], stop

    def greedy(self, prompt: int, count: int = 24) -> list[int]:
        return list(self.reference.greedy(self.prompts[prompt], count))

    def string_across(self, prompt: int, first: int = 3) -> str:
        """A text of the greedy output of a prompt that begins within one token and ends within the next."""
        ids = self.greedy(prompt)
        for i in range(first, len(ids) - 1):
            left, right = self.text([ids[i]]), self.text([ids[i + 1]])
            clean = left.isprintable() and right.isprintable() and "\ufffd" not in left + right
            stop = left[-1:] + right[:1]
            if left and right and clean and self.text(ids[i : i + 2]) == left + right and stop not in self.text(ids[: i + 1]):
                return stop
        raise AssertionError("no two neighbouring tokens make a text of their own; take another prompt")


@pytest.fixture(params=["random", "demo"])
def setup(request: pytest.FixtureRequest, qwen3_checkpoint: Callable[..., Path], reference: Callable[..., Any]) -> Setup:
    from transformers import AutoTokenizer

    if request.param == "demo":
        folder = QWEN3
        tokenizer = AutoTokenizer.from_pretrained(folder)
        problems = make_problems("mixed", 4, seed=2)
        # One problem to be answered. Unfinished ones leave the model less sure, so that settings have something to change.
        texts = [
            chat_prompt(p) if not cut else p.prompt_text[:cut] for p, cut in zip(problems, (41, None, 60, 70), strict=True)
        ]
        prompts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    else:
        folder = qwen3_checkpoint("tiny")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        generator = torch.Generator().manual_seed(3)
        prompts = [torch.randint(0, 400, (length,), generator=generator).tolist() for length in (5, 16, 23, 40)]
    return Setup(folder, prompts, reference(folder), tokenizer)


# ------------------------------------------------------------------------------------------------------ requests
def thirty_requests(setup: Setup) -> dict[str, tuple[int, SamplingParams]]:
    """name: (index of the prompt, settings). All have effects on this checkpoint, which the test makes sure of."""
    g = [setup.greedy(i) for i in range(4)]
    across = [setup.string_across(i) for i in range(4)]
    eos = setup.tokenizer.eos_token_id

    def greedy(prompt: int, **settings: Any) -> tuple[int, SamplingParams]:
        return prompt, SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **settings})

    def drawn(prompt: int, **settings: Any) -> tuple[int, SamplingParams]:
        return greedy(prompt, **{"temperature": 1.3, "seed": 2**40 + 17 * prompt + len(settings), **settings})

    return {
        "greedy": greedy(0),
        "greedy, model's stop ids": greedy(1, ignore_eos=False, max_tokens=40),
        "stop id": greedy(2, stop_token_ids=[g[2][6]]),
        "stop id, its text kept": greedy(
            2, stop_token_ids=[g[2][6]], include_stop_str_in_output=True, skip_special_tokens=False
        ),
        "stop id and min_tokens": greedy(2, stop_token_ids=[g[2][6]], min_tokens=12),
        "stop string over two tokens": greedy(0, stop=across[0]),
        "stop string kept": greedy(1, stop=[across[1], "never there"], include_stop_str_in_output=True),
        "stop string and min_tokens": greedy(1, stop=[across[1], setup.string_across(1, first=9)], min_tokens=8),
        "stop string and stop id": greedy(3, stop=[across[3]], stop_token_ids=[g[3][20]]),
        "repetition": greedy(0, repetition_penalty=1.3),
        "repetition that rewards": greedy(2, repetition_penalty=0.5),
        "presence": greedy(2, presence_penalty=2.0),
        "presence that rewards": greedy(3, presence_penalty=-2.0),
        "frequency": greedy(0, frequency_penalty=1.5),
        "frequency that rewards": greedy(2, frequency_penalty=-0.7),
        "all penalties": greedy(2, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.9, logprobs=3),
        "bias up and ban": greedy(3, logit_bias={g[3][0]: BAN, g[3][1]: -3.5, g[3][4]: 4.0}, logprobs=2),
        "allowed ids": greedy(0, allowed_token_ids=sorted(set(g[0][:6]) | {5, 9, 77})),
        "allowed ids, bias and penalties": greedy(
            1,
            allowed_token_ids=list(range(20, 60)),
            logit_bias={33: 1.5, 21: BAN},
            frequency_penalty=1.0,
            repetition_penalty=1.1,
        ),
        "stop id in reach only after min_tokens": greedy(3, logit_bias={eos: 100.0}, ignore_eos=False, min_tokens=9),
        "logprobs": greedy(1, logprobs=5),
        "logprobs of the choice alone": drawn(2, logprobs=0),
        "temperature": drawn(0),
        "top_k": drawn(2, top_k=7),
        "top_p": drawn(2, top_p=0.8),
        "min_p": drawn(3, min_p=0.1),
        "top_k, top_p and min_p": drawn(0, top_k=30, top_p=0.9, min_p=0.02, logprobs=4),
        "filters and penalties": drawn(3, top_k=40, top_p=0.95, repetition_penalty=1.4, presence_penalty=0.7),
        "filters, allowed ids and a stop id": drawn(
            2, top_p=0.9, allowed_token_ids=list(range(0, 300, 3)), stop_token_ids=[9, 99]
        ),
        "everything": drawn(
            3,
            temperature=0.9,
            top_k=50,
            top_p=0.97,
            min_p=0.01,
            repetition_penalty=1.1,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logit_bias={7: 2.0, 8: -2.0, g[3][0]: BAN},
            allowed_token_ids=[*range(200), *g[3]],
            stop_token_ids=[11, 12],
            stop=["ab", across[3]],
            min_tokens=5,
            logprobs=3,
        ),
    }


def test_thirty_requests_equal_transformers(device: str, setup: Setup, make_llm: Callable[..., LLM]) -> None:
    requests = thirty_requests(setup)
    assert len(requests) == 30
    # Chunks, shared prompt starts, and requests that come and go within the batch.
    llm = make_llm(setup.folder, device=device, max_num_batched_tokens=64, max_num_seqs=20)
    prompts = [setup.prompts[index] for index, _ in requests.values()]
    outputs = llm.generate(prompts, [params for _, params in requests.values()], use_tqdm=False)
    plain = [setup.greedy(i) for i in range(4)]
    margins, idle = [], []
    for (name, (index, params)), output in zip(requests.items(), outputs, strict=True):
        expected = setup.run(setup.prompts[index], params)
        assert output.token_ids == expected.token_ids, name
        assert output.text == expected.text, name
        assert output.stop_reason == expected.stop_reason, name
        assert output.finish_reason == ("length" if expected.stop_reason is None else "stop"), name
        check_logprobs(name, output.logprobs, params.logprobs, output.token_ids, expected.logprobs)
        margins.append(expected.margin)
        if name not in ("greedy", "logprobs") and output.token_ids == plain[index]:
            idle.append(name)
    print(f"closest choice: {min(margins):.1e}; as plain greedy: {idle}")
    # A choice closer than rounding would make the comparison a matter of luck.
    assert min(margins) > 1e-4
    assert idle == []


def check_logprobs(name: str, given: Any, k: int | None, token_ids: list[int], expected: Tensor) -> None:
    """``given`` has the token and the k most likely of each row of ``expected``, with their values, ranks and order."""
    if k is None:
        assert given is None, name
        return
    assert len(given) == len(token_ids) == len(expected), name
    for entry, token, row in zip(given, token_ids, expected, strict=True):
        if entry is None:
            continue
        ordered = row.argsort(descending=True).tolist()
        assert list(entry)[:k] == ordered[:k], name
        assert set(entry) == {*ordered[:k], token}, name
        for i, item in entry.items():
            assert item.logprob == pytest.approx(row[i].item(), abs=1e-4), name
            assert item.rank == ordered.index(i) + 1, name


# ------------------------------------------------------------------------------------------------------ filters
@pytest.mark.parametrize(
    "filters",
    [{"top_k": 6}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 12, "top_p": 0.8, "min_p": 0.05}],
    ids=lambda filters: "+".join(filters),
)
def test_draws_come_from_the_ids_that_transformers_keeps(
    device: str, setup: Setup, make_llm: Callable[..., LLM], filters: dict[str, Any]
) -> None:
    temperature = 1.0 if setup.folder == QWEN3 else 2.0
    llm = make_llm(setup.folder, device=device, num_kv_blocks=512)
    prompt, count = setup.prompts[2], 300
    settings = [SamplingParams(temperature=temperature, max_tokens=1, seed=i, **filters) for i in range(count)]
    outputs = llm.generate([prompt] * count, settings, use_tqdm=False)
    scores = setup.reference.logits(prompt)[-1:].clone()
    kept_scores = processors(settings[0], len(prompt), [], scores.shape[1])(torch.tensor([prompt]), scores)[0]
    kept = set(torch.isfinite(kept_scores).nonzero()[:, 0].tolist())
    assert 2 <= len(kept) < scores.shape[1] // 2
    drawn = [output.token_ids[0] for output in outputs]
    assert drawn == [int((kept_scores + gumbel(i, 0, len(kept_scores))).argmax()) for i in range(count)]
    # Each kept id of some weight was drawn, so none of them was dropped.
    likely = (torch.softmax(kept_scores, -1) > 0.03).nonzero()[:, 0].tolist()
    assert set(likely) <= set(drawn) <= kept


def test_the_random_numbers_are_philox() -> None:
    # Of Random123's known answers: counter and key of zeros; the first word of the counter alone tells quads apart.
    assert [hex(word) for word in philox(0, 0, 1)[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


# ------------------------------------------------------------------------------------------------------ prompts
@pytest.mark.parametrize("chunk", [16, 4096])
def test_prompt_logprobs_equal_transformers(device: str, setup: Setup, make_llm: Callable[..., LLM], chunk: int) -> None:
    llm = make_llm(setup.folder, device=device, max_num_batched_tokens=chunk)
    wanted = [SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=k) for k in (0, 1, 4, 4)]
    for again in range(2):  # the second time the prompts are in the prefix cache
        outputs = llm.generate(setup.prompts, wanted, use_tqdm=False)
        for prompt, params, output in zip(setup.prompts, wanted, outputs, strict=True):
            check_prompt_logprobs(setup, prompt, params.prompt_logprobs, output)
            assert output.num_cached_tokens == 0, again
    plain = llm.generate(setup.prompts, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    assert [output.token_ids for output in plain] == [output.token_ids for output in outputs]
    assert all(output.prompt_logprobs is None for output in plain)
    assert any(output.num_cached_tokens for output in plain)


def check_prompt_logprobs(setup: Setup, prompt: list[int], k: int | None, output: RequestOutput) -> None:
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    expected = torch.log_softmax(setup.reference.logits(prompt), -1)[:-1]
    check_logprobs("prompt", output.prompt_logprobs[1:], k, prompt[1:], expected)


# ------------------------------------------------------------------------------------------------------ refused
@pytest.mark.parametrize("settings", [{"logit_bias": {50: BAN}}, {"stop_token_ids": [50], "min_tokens": 2}])
def test_a_request_that_could_choose_nothing_is_refused(make_llm: Callable[..., LLM], settings: dict[str, Any]) -> None:
    llm = make_llm(QWEN3)
    with pytest.raises(ArgumentError, match="allowed_token_ids"):
        llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[50], **settings), use_tqdm=False)
