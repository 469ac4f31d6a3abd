"""Arguments that people bring from vLLM and nano-vLLM, and what to do here instead."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from qvllm_engine.arguments import nearest
from qvllm_engine.errors import ArgumentError
from qvllm_engine.sampling_params import SamplingParams

_HUB = "download the revision you want with huggingface_hub.snapshot_download and pass its folder"
_WEIGHTS = "weights are loaded as they are, in bfloat16 or float32"
_TEXT = "models here take text alone"
_WHOLE = "weights stay on the device, and the layers of a model together"
_ADAPTER = "merge the adapter into the weights first"
_OUTPUT = "models generate text; embeddings are not offered"

FOREIGN_ARGUMENTS = {
    # Other names for what is here.
    "kv_cache_memory_bytes": "it is called kv_cache_memory",
    "num_gpu_blocks_override": "it is called num_kv_blocks",
    "num_kvcache_blocks": "it is called num_kv_blocks",
    "kvcache_block_size": "it is called block_size",
    "attention_backend": "backend chooses all operators together",
    # What is always on, or always off.
    "enable_chunked_prefill": "long prompts are always computed in chunks of up to max_num_batched_tokens",
    "async_scheduling": "a step is always planned while the one before runs",
    "disable_log_stats": "nothing is logged while requests run; metrics() has the numbers",
    "trust_remote_code": "code of a checkpoint never runs",
    "disable_custom_all_reduce": "ranks talk through torch.distributed alone",
    "scheduling_policy": "requests run in order of arrival",
    "max_num_partial_prefills": "prompts are computed in order of arrival",
    "max_seq_len_to_capture": "decode graphs serve every length up to max_model_len",
    "compilation_config": "nothing is compiled with torch.compile; enforce_eager switches CUDA graphs off",
    "cudagraph_capture_sizes": "graphs are captured for sizes up to max_num_seqs; enforce_eager switches them off",
    "max_logprobs": "a request may ask for up to 100",
    "logprobs_mode": "log probabilities are of the model's own logits",
    "enable_log_requests": "nothing is logged while requests run; metrics() has the numbers",
    "disable_sliding_window": "the models here attend to the whole sequence",
    "use_v2_block_manager": "there is one block manager",
    "tokenizer_pool_size": "prompts are encoded by the process that calls generate",
    # What is not offered.
    "quantization": _WEIGHTS,
    "kv_transfer_config": "the cache stays in this process",
    "profiler_config": "use torch.profiler around the calls",
    "kv_cache_dtype": "the cache has the dtype of the model",
    "calculate_kv_scales": "the cache has the dtype of the model",
    "swap_space": "a preempted request is computed again; nothing is swapped out",
    "cpu_offload_gb": _WHOLE,
    "pipeline_parallel_size": _WHOLE,
    "data_parallel_size": "start one process per GPU, each with its part of the prompts",
    "enable_expert_parallel": "the models here have no experts",
    "distributed_executor_backend": "ranks are processes of this machine",
    "enable_lora": _ADAPTER,
    "max_loras": _ADAPTER,
    "max_lora_rank": _ADAPTER,
    "speculative_config": "tokens are drawn one by one",
    "enable_sleep_mode": "close() frees the device, and a new LLM takes it again",
    "logits_processors": "Python callbacks would stop the device at every token; use logit_bias or allowed_token_ids",
    "structured_outputs_config": "constrained decoding is not offered; use allowed_token_ids, or check the text",
    "guided_decoding_backend": "constrained decoding is not offered; use allowed_token_ids, or check the text",
    "pooler_config": _OUTPUT,
    "runner": _OUTPUT,
    "convert": _OUTPUT,
    "task": _OUTPUT,
    "model_impl": "a model comes from an installed package: qvllm-models, or one that registers in qvllm.models",
    # What the checkpoint's folder says.
    "tokenizer": "the tokenizer is the one in the model's folder",
    "tokenizer_mode": "the tokenizer is the one in the model's folder",
    "tokenizer_revision": _HUB,
    "skip_tokenizer_init": "pass token ids and read token_ids: then the tokenizer costs nothing",
    "revision": _HUB,
    "code_revision": "code of a checkpoint never runs",
    "download_dir": "set the environment variable HF_HOME",
    "hf_token": "log in with `hf auth login`, or set the environment variable HF_TOKEN",
    "hf_overrides": "change config.json in a copy of the folder",
    "hf_config_path": "config.json is read from the model's folder",
    "config_format": "config.json is read as Hugging Face writes it",
    "generation_config": "generation_config.json is read from the model's folder; sampling_params go before it",
    "override_generation_config": "pass sampling_params to generate or chat",
    "chat_template": "the template is the one in the model's folder",
    "served_model_name": "there is no server",
    "mm_processor_kwargs": _TEXT,
    "limit_mm_per_prompt": _TEXT,
    "allowed_local_media_path": _TEXT,
    "language_model_only": _TEXT,
    "ignore_patterns": "all of a model's safetensors are read",
    "model_loader_extra_config": "weights are read from safetensors alone",
}

# Of generate and chat.
FOREIGN_INPUTS = {
    "prompt_token_ids": "pass the ids as prompts",
    "lora_request": _ADAPTER,
    "priority": "requests run in order of arrival",
    "tools": "pass chat_template_kwargs={'tools': [...]}",
    "add_generation_prompt": "an answer is started unless continue_final_message=True",
    "chat_template": "the template is the one in the model's folder",
    "chat_template_content_format": "a content is a text, or a list of parts of text",
    "tokenization_kwargs": "cut or change a list of token ids before you pass it",
    "mm_processor_kwargs": _TEXT,
}


def refuse_unknown(names: Iterable[str], known: Sequence[str]) -> NoReturn:
    """Refuse constructor arguments that are none of ``known``.

    Raises:
        ArgumentError: always; the text says of the first what to do instead.
    """
    name = sorted(names)[0]
    if name in FOREIGN_ARGUMENTS:
        raise ArgumentError(f"LLM has no {name}: {FOREIGN_ARGUMENTS[name]}")
    raise ArgumentError(f"LLM has no {name}: {nearest(name, known, 'arguments', cutoff=0.75)}")


def refuse_inputs(call: str, inputs: Mapping[str, Any]) -> None:
    """Refuse keywords that ``call``, "generate" or "chat", does not know. None says nothing, and passes.

    Raises:
        ArgumentError: the text says of the first what to do instead.
    """
    given = sorted(name for name, value in inputs.items() if value is not None)
    if not given:
        return
    name = given[0]
    if name in (field.name for field in fields(SamplingParams)):
        raise ArgumentError(f"{call} takes {name} in sampling_params: pass SamplingParams({name}=...)")
    if name in FOREIGN_INPUTS:
        raise ArgumentError(f"{call} has no {name}: {FOREIGN_INPUTS[name]}")
    raise ArgumentError(f"{call} does not know {', '.join(given)} for this model, which takes text alone")
