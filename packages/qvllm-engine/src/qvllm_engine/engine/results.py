"""From what a step sampled, and a sequence that ended, to what the caller gets."""

from collections.abc import Sequence as Rows

from qvllm_engine.config import EngineConfig
from qvllm_engine.engine.logprobs import HostLogprobs
from qvllm_engine.engine.model_runner import SampledTokens
from qvllm_engine.engine.scheduler import BROKEN, Row
from qvllm_engine.engine.sequence import Sequence, Status
from qvllm_engine.logprob_list import LogprobList
from qvllm_engine.outputs import RequestMetrics, RequestOutput, TokenLogprob
from qvllm_engine.tokenizer import Tokenizer


def record_logprobs(rows: Rows[Row], sampled: SampledTokens, tokens: list[int]) -> None:
    """Give each sequence the log probabilities that a step computed for it. Call before the step lands.

    Args:
        rows: of the step.
        sampled: what it gave.
        tokens: its tokens on the host.
    """
    if sampled.logprobs is not None:
        sampling, logprobs = (row.seq for row in rows if row.samples), sampled.logprobs.on_host()
        for index, (seq, token) in enumerate(zip(sampling, tokens, strict=True)):
            if seq.params.logprobs is not None and token != BROKEN and seq.status is not Status.FINISHED:
                seq.logprobs.extend(logprobs.rows([token], index, seq.params.logprobs))
    if sampled.prompt_logprobs is not None:
        start, logprobs = 0, sampled.prompt_logprobs.on_host()
        for seq, positions in ((row.seq, row.prompt_positions) for row in rows):
            _record_prompt(seq, positions, logprobs, start)
            start += len(positions)


def _record_prompt(seq: Sequence, positions: range, logprobs: HostLogprobs, start: int) -> None:
    """Add what a sequence's rows from ``start`` on tell of the tokens after ``positions``."""
    if not positions or seq.params.prompt_logprobs is None:
        return
    if not seq.prompt_logprobs:
        seq.prompt_logprobs.append_none()  # nothing predicts the first
    known = len(seq.prompt_logprobs) - 1 - positions.start  # before it was preempted on the way
    if 0 <= known < len(positions):
        targets = seq.token_ids[positions.start + known + 1 : positions.stop + 1]
        seq.prompt_logprobs.extend(logprobs.rows(targets, start + known, seq.params.prompt_logprobs))


def nan_cause(config: EngineConfig) -> str:
    """What makes logits hold NaN in such an engine, and what to do."""
    overflow = "activations overflowed, as those of weights that do not belong to config.json do"
    if config.dtype != "float32":
        overflow += "; dtype='float32' tells"
    if config.load_format == "dummy" or config.check_weights:
        return f"the weights are finite, so {overflow}"
    return f"either weights hold NaN, and check_weights=True names the tensor, or {overflow}"


def make_output(seq: Sequence, tokenizer: Tokenizer | None, nan_cause: str) -> RequestOutput:
    """The output of a sequence that has ended."""
    if seq.finish_reason is None or seq.finished_time is None:
        raise RuntimeError(f"request {seq.request_id} has not ended")
    params, error = seq.params, None
    if seq.finish_reason == "error":
        error = f"the logits after {len(seq.token_ids)} tokens hold NaN: {nan_cause}"
    return RequestOutput(
        request_id=seq.request_id,
        prompt=seq.prompt,
        prompt_token_ids=seq.token_ids[: seq.num_prompt_tokens],
        token_ids=seq.output_token_ids,
        text=_text(seq, tokenizer),
        finish_reason=seq.finish_reason,
        error=error,
        stop_reason=seq.stop_reason,
        num_cached_tokens=seq.num_cached_tokens or 0,
        logprobs=None if params.logprobs is None else seq.logprobs,
        prompt_logprobs=None if params.prompt_logprobs is None else _prompt_logprobs(seq),
        metrics=RequestMetrics(
            arrival_time=seq.arrival_time,
            first_scheduled_time=seq.first_scheduled_time,
            first_token_time=seq.first_token_time,
            finished_time=seq.finished_time,
            num_preemptions=seq.num_preemptions,
        ),
    )


def _prompt_logprobs(seq: Sequence) -> LogprobList[dict[int, TokenLogprob] | None]:
    """Those of the prompt. One of a single token has no row that tells of it: nothing predicts the first."""
    if seq.num_prompt_tokens == 1 and seq.output_token_ids and not seq.prompt_logprobs:
        seq.prompt_logprobs.append_none()
    return seq.prompt_logprobs


def _text(seq: Sequence, tokenizer: Tokenizer | None) -> str:
    if seq.text is not None:
        return seq.text.final
    if tokenizer is None:
        return ""
    ended_by_token = isinstance(seq.stop_reason, int) and not seq.params.include_stop_str_in_output
    token_ids = seq.output_token_ids[:-1] if ended_by_token else seq.output_token_ids
    return tokenizer.decode(token_ids, seq.params.skip_special_tokens)
