"""What LLM does with a checkpoint's folder: configs alone, code it must not run, models it does not know."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qvllm_engine import LLM, CheckpointError, ModelMemoryError, ModelNotFoundError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_dummy_weights_need_a_config_alone(
    make_llm: Callable[..., LLM], qwen3_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text((qwen3_checkpoint("tiny") / "config.json").read_text())
    first, same, other = (
        [out.token_ids for out in make_llm(tmp_path, load_format="dummy", seed=seed).generate([[1, 2, 3]], GREEDY)]
        for seed in (0, 0, 1)
    )
    assert first == same != other


def test_a_model_without_a_package_is_refused_with_the_installed_ones() -> None:
    with pytest.raises(ModelNotFoundError, match=r"'Qwen3_5ForConditionalGeneration' \(installed: .*Qwen3ForCausalLM"):
        LLM("config:qwen3.5-0.8b", load_format="dummy", device="cpu")


def test_code_in_the_folder_never_runs(make_qwen3: Callable[..., Path], make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    folder, trace = make_qwen3(tmp_path / "model"), tmp_path / "trace"
    for name in ("configuration_evil", "modeling_evil", "tokenization_evil"):
        (folder / f"{name}.py").write_text(f"open({str(trace)!r}, 'a').write('ran')\nclass Evil: pass\n")
    edit(folder / "config.json", auto_map={"AutoConfig": "configuration_evil.Evil", "AutoModel": "modeling_evil.Evil"})
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_evil.Evil", None]})
    llm = make_llm(folder)
    assert len(llm.generate("hello", GREEDY)[0].token_ids) == 4
    assert not trace.exists()


def test_an_untied_head_that_is_missing_is_an_error(make_qwen3: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_qwen3(tmp_path, tied=False)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensor for lm_head\.weight"):
        LLM(folder, dtype="float32", device="cpu", num_kv_blocks=8)


def test_a_tied_head_need_not_be_stored(
    make_qwen3: Callable[..., Path], make_llm: Callable[..., LLM], qwen3_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_qwen3(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    outputs = [make_llm(path).generate([[1, 2, 3]], GREEDY)[0].token_ids for path in (folder, qwen3_checkpoint("tiny"))]
    assert outputs[0] == outputs[1]


def test_weights_that_do_not_fit_are_a_memory_error(qwen3_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((qwen3_checkpoint("tiny") / "config.json").read_text())
    edit(tmp_path / "config.json", hidden_size=10**8, vocab_size=10**8)
    with pytest.raises(ModelMemoryError, match="weights do not fit on cpu"):
        LLM(tmp_path, load_format="dummy", device="cpu")
