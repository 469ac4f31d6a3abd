"""The demo's training code: the loss mask, packing, and that the shipped tokenizer is the one it builds."""

import copy
import importlib
import json
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3ForCausalLM

from qvllm_models.demos import QWEN3
from qvllm_models.demos.problems import is_held_out, make_problems

TRAINING = Path(__file__).resolve().parents[1] / "training"


@pytest.fixture(scope="module")
def training() -> Any:
    """Imports one of the training scripts by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TRAINING))
        yield importlib.import_module


@pytest.fixture(scope="module")
def dataset(training: Any) -> ModuleType:
    return training("dataset")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(QWEN3 / "tokenizer.json"))


def test_conversations_hold_no_held_out_problem(dataset: ModuleType) -> None:
    for pieces in islice(dataset.conversations(0), 500):
        asked = [text for text, counts in pieces if not counts and text.startswith("<|im_start|>user\n")]
        assert asked
        for text in asked:
            assert not is_held_out(text.removeprefix("<|im_start|>user\n").partition("<|im_end|>")[0])


@pytest.mark.parametrize("thinking", [True, False])
def test_a_conversation_renders_as_the_template_does(dataset: ModuleType, thinking: bool) -> None:
    problems = make_problems("mixed", 3, 0)
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are a helpful assistant."}]
    for problem in problems:
        messages += [{"role": "user", "content": problem.prompt_text}, {"role": "assistant", "content": problem.solution}]
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinking}
    prompt = AutoTokenizer.from_pretrained(QWEN3).apply_chat_template(messages[:-1], **options)
    pieces = dataset.render(problems, thinking, "You are a helpful assistant.")
    assert "".join(text for text, _ in pieces) == f"{prompt}{problems[-1].solution}<|im_end|>"


def test_the_loss_counts_the_assistants_tokens_alone(dataset: ModuleType, tokenizer: Tokenizer) -> None:
    problems = make_problems("mixed", 4, 1)
    (row,) = dataset.encode(tokenizer, [dataset.render(problems, thinking=False)])
    counted = [token for token, counts in zip(*row, strict=True) if counts]
    assert tokenizer.decode(counted, skip_special_tokens=False) == "".join(f"{p.solution}<|im_end|>" for p in problems)


def test_packing_keeps_every_row_and_pads_with_further_documents(dataset: ModuleType, tokenizer: Tokenizer) -> None:
    rows = dataset.encode(tokenizer, list(islice(dataset.conversations(2), 60)))
    groups = list(dataset.packed_rows(iter(rows), 2048, 1024))
    assert [row for group in groups for row in group] == [row for row in rows if len(row[0]) <= 1024]
    for group in groups:
        packed = dataset.pack(group, 2048, pad=736)
        starts = packed.cu_seqlens
        for i, (ids, mask) in enumerate(group):
            assert packed.ids[starts[i] : starts[i + 1]].tolist() == ids
            counted = [token for token, counts in zip(ids, mask, strict=True) if counts]
            assert packed.targets[packed.document == i].tolist() == counted
        assert set(packed.ids[starts[len(group)] :].tolist()) <= {736}
        assert starts[-1] == 2048
        assert np.diff(starts).min() >= 0
        assert packed.ids[packed.predicts + 1].tolist() == packed.targets.tolist()


def test_the_packed_forward_equals_each_document_alone(training: Any, dataset: ModuleType, tokenizer: Tokenizer) -> None:
    script = training("train_qwen3")
    rows = dataset.encode(tokenizer, list(islice(dataset.conversations(3), 12)))
    group = next(dataset.packed_rows(iter(rows), 1024, 512))
    assert len(group) > 2
    model = script.build_model(0).eval()
    plain = Qwen3ForCausalLM._from_config(copy.deepcopy(model.config), attn_implementation="sdpa", dtype=torch.float32).eval()
    plain.load_state_dict(model.state_dict())
    with torch.inference_mode():
        logits, _ = script.logits_at(model, dataset.pack(group, 1024, pad=736), "cpu")
        alone = [plain(torch.tensor([ids])).logits[0, np.flatnonzero(mask) - 1] for ids, mask in group]
    torch.testing.assert_close(logits, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_the_shipped_tokenizer_is_the_one_that_the_script_builds(training: Any) -> None:
    built = json.loads(training("train_qwen3").build_tokenizer(0).to_str())
    shipped = json.loads((QWEN3 / "tokenizer.json").read_text(encoding="utf-8"))
    for part in ("vocab", "merges"):
        assert built["model"][part] == shipped["model"][part]
    assert built["added_tokens"] == shipped["added_tokens"]


def test_the_shipped_configs_are_the_scripts(training: Any) -> None:
    script = training("train_qwen3")
    assert json.loads((QWEN3 / "config.json").read_text()) == script.CONFIG
    assert json.loads((QWEN3 / "generation_config.json").read_text()) == script.GENERATION_CONFIG


def test_the_rate_rises_stays_and_falls_to_zero(training: Any) -> None:
    rate_at = training("train_qwen3").rate_at
    rates = [rate_at(step / 100, step, 1.0, 20) for step in range(101)]
    assert rates[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert rates[20:51] == [1.0] * 31
    assert rates[50:] == sorted(rates[50:], reverse=True)
    assert rates[75] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)


def test_going_on_from_a_folder_keeps_its_files_and_starts_at_its_weights(training: Any, tmp_path: Path) -> None:
    script = training("train_qwen3")
    script.copy_texts(QWEN3, tmp_path)
    script.save_weights(script.load_model(QWEN3), tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in QWEN3.iterdir() if path.suffix not in (".md", ".txt")}
    kept["merges.txt"] = (QWEN3 / "merges.txt").read_bytes()
    tensors, shipped = load(made.pop("model.safetensors")), load(kept.pop("model.safetensors"))
    assert made == kept
    assert tensors.keys() == shipped.keys()
    assert all(torch.equal(tensors[name], shipped[name]) for name in tensors)


def test_going_on_in_the_same_folder_is_refused(training: Any) -> None:
    with pytest.raises(ValueError, match="write to another folder"):
        training("train_qwen3").copy_texts(QWEN3, QWEN3)
