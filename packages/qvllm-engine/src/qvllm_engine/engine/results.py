"""From what a step sampled, and a sequence that ended, to what the caller gets."""

from collections.abc import Callable
from collections.abc import Sequence as Rows

from qvllm_engine.engine.model_runner import SampledTokens
from qvllm_engine.engine.scheduler import Row
from qvllm_engine.engine.sequence import Sequence, Status
from qvllm_engine.outputs import RequestMetrics, RequestOutput, TokenLogprob
from qvllm_engine.tokenizer import Tokenizer


def record_logprobs(rows: Rows[Row], sampled: SampledTokens, tokens: list[int], text_of: Callable[[int], str]) -> None:
    """Give each sequence the log probabilities that a step computed for it. Call before the step lands.

    Args:
        rows: of the step.
        sampled: what it gave.
        tokens: its tokens on the host.
        text_of: the text of a token alone.
    """
    if sampled.logprobs is not None:
        sampling = [row.seq for row in rows if row.samples]
        entries = sampled.logprobs.rows(tokens, [seq.params.logprobs for seq in sampling], text_of)
        for seq, entry in zip(sampling, entries, strict=True):
            if entry is not None and seq.status is not Status.FINISHED:
                seq.logprobs.append(entry)
    if sampled.prompt_logprobs is not None:
        wanted = [(row.seq, position + 1) for row in rows for position in row.prompt_positions]
        targets = [seq.token_ids[position] for seq, position in wanted]
        entries = sampled.prompt_logprobs.rows(targets, [seq.params.prompt_logprobs for seq, _ in wanted], text_of)
        for (seq, position), entry in zip(wanted, entries, strict=True):
            if not seq.prompt_logprobs:
                seq.prompt_logprobs.append(None)  # nothing predicts the first
            if position == len(seq.prompt_logprobs):  # known already when it was preempted on the way
                seq.prompt_logprobs.append(entry)


def make_output(seq: Sequence, tokenizer: Tokenizer | None) -> RequestOutput:
    """The output of a sequence that has ended."""
    if seq.finish_reason is None or seq.finished_time is None:
        raise RuntimeError(f"request {seq.request_id} has not ended")
    params = seq.params
    return RequestOutput(
        request_id=seq.request_id,
        prompt_token_ids=seq.token_ids[: seq.num_prompt_tokens],
        token_ids=seq.output_token_ids,
        text=_text(seq, tokenizer),
        finish_reason=seq.finish_reason,
        stop_reason=seq.stop_reason,
        num_cached_tokens=seq.num_cached_tokens or 0,
        logprobs=None if params.logprobs is None else seq.logprobs,
        prompt_logprobs=None if params.prompt_logprobs is None else seq.prompt_logprobs or _only_entry(seq),
        metrics=RequestMetrics(
            arrival_time=seq.arrival_time,
            first_scheduled_time=seq.first_scheduled_time,
            first_token_time=seq.first_token_time,
            finished_time=seq.finished_time,
            num_preemptions=seq.num_preemptions,
        ),
    )


def _only_entry(seq: Sequence) -> list[dict[int, TokenLogprob] | None]:
    """A prompt of one token has no row that tells of it: nothing predicts the first."""
    return [None] if seq.num_prompt_tokens == 1 and seq.output_token_ids else []


def _text(seq: Sequence, tokenizer: Tokenizer | None) -> str:
    if seq.text is not None:
        return seq.text.final
    if tokenizer is None:
        return ""
    ended_by_token = isinstance(seq.stop_reason, int) and not seq.params.include_stop_str_in_output
    token_ids = seq.output_token_ids[:-1] if ended_by_token else seq.output_token_ids
    return tokenizer.decode(token_ids, seq.params.skip_special_tokens)
