"""Conversations and texts become the ids that transformers makes of them, for the demo and for the published checkpoints.

The published files are looked for in the folder that ``QVLLM_CHECKPOINTS`` names, each checkpoint in a folder of its own:
``Qwen3-0.6B``, ``Qwen3.5-0.8B``, ``Qwen3-ASR-0.6B``. Tokenizer and template files are enough. Without the variable their tests
skip; with it a folder that is absent or not complete fails them.
"""

import json
import os
import random
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from qvllm_engine.errors import ArgumentError
from qvllm_engine.tokenizer import Tokenizer
from qvllm_models.demos import QWEN3

PUBLISHED = ("Qwen3-0.6B", "Qwen3.5-0.8B", "Qwen3-ASR-0.6B")
# How Qwen2 and Qwen3 split text before BPE; Qwen3.5 has its own in tokenizer_config.json.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

TEXTS = {
    "plain": "It's 12345 o'clock -- isn't it?\n\n  Well,\tyes.  \r\n",
    "combining marks": "e\u0301a\u0308o\u0302\u0323 q\u0307\u0323 Z\u0351\u036b\u0343\u036aA\u030a",
    "Thai": "สวัสดีครับ ที่นี่มีน้ำดื่ม ๑๒๓",
    "Hindi": "हिन्दी में नमस्ते, क्या हाल है? १२३",
    "Arabic marks": "ٱلسَّلَامُ عَلَيْكُمْ وَرَحْمَةُ ٱللَّٰهِ ٣٤",
    "Hebrew marks": "בְּרֵאשִׁית בָּרָא",
    "Tamil and Burmese": "வணக்கம் உலகம் မင်္ဂလာပါ",
    "CJK": "加拿大的首都是渥太华。東京タワー、서울특별시",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🇨🇦 ❤️ 🏳️‍🌈",
    "NFC": unicodedata.normalize("NFC", "Ångström café Việt 한국"),
    "NFD": unicodedata.normalize("NFD", "Ångström café Việt 한국"),
    "code": "def f(x):\n    return {'a': [1, 22, 333]}  # \u00a0done\n\n\n",
    "special tokens": "<|im_start|>a<|im_end|><think>b</think> <|endoftext|><tool_call>",
}

USER = {"role": "user", "content": "  What is 12 + 30?\n"}
SYSTEM = {"role": "system", "content": "Be brief. "}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def call(city: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "arguments": {"city": city, **more}}}


TOOL_TURNS = [
    {"role": "user", "content": "Is it warm in Paris and in Đà Nẵng?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [call("Paris"), call("Đà Nẵng", days=[1, 2], unit=None)]},
    {"role": "tool", "content": '{"degrees": 21}'},
    {"role": "tool", "content": "31 °C"},
]
REASONED = [
    USER,
    {"role": "assistant", "content": "<think>\n12 and 30\n</think>\n\n42"},
    {"role": "user", "content": "And 1 more?"},
    {"role": "assistant", "content": "43", "reasoning_content": "42 + 1"},
    {"role": "user", "content": "Sure?"},
]
# name: messages, continue_final_message, template variables
CASES: dict[str, tuple[list[dict[str, Any]], bool, dict[str, Any]]] = {
    "one turn": ([USER], False, {}),
    "thinking on": ([USER], False, {"enable_thinking": True}),
    "thinking off": ([USER], False, {"enable_thinking": False}),
    "system": ([SYSTEM, USER], False, {}),
    "several turns with reasoning": (REASONED, False, {}),
    "several turns, thinking on": ([SYSTEM, *REASONED], False, {"enable_thinking": True}),
    "tools offered": ([USER], False, {"tools": [TOOL]}),
    "tools offered, with system": ([SYSTEM, USER], False, {"tools": [TOOL], "enable_thinking": False}),
    "tool calls and responses": (TOOL_TURNS, False, {"tools": [TOOL]}),
    "answered after tools": ([*TOOL_TURNS, {"role": "assistant", "content": "Yes."}, USER], False, {"tools": [TOOL]}),
    "continued": ([USER, {"role": "assistant", "content": "The answer is"}], True, {}),
    "continued, with reasoning": ([SYSTEM, *REASONED[:2]], True, {}),
    "continued reasoning": ([USER, {"role": "assistant", "content": "", "reasoning_content": "12 and"}], True, {}),
    **{f"text: {name}": ([{"role": "user", "content": text}], False, {}) for name, text in TEXTS.items()},
}
AUDIO = {"type": "audio", "audio_url": "clip.wav"}
ASR_CASES: dict[str, tuple[list[dict[str, Any]], bool, dict[str, Any]]] = {
    "audio": ([{"role": "user", "content": [AUDIO]}], False, {}),
    "audio and context": (
        [
            {"role": "system", "content": "Names: " + TEXTS["Thai"]},
            {"role": "user", "content": [AUDIO, {"type": "text", "text": "dropped"}]},
        ],
        False,
        {},
    ),
    "context in parts": ([{"role": "system", "content": [{"type": "text", "text": "a"}]}, USER], False, {}),
}
ALL_CASES = [
    *((name, case) for name in ("demo", *PUBLISHED[:2]) for case in CASES),
    *((PUBLISHED[2], case) for case in ASR_CASES),
]


@dataclass(frozen=True)
class Opened:
    """A checkpoint's tokenizer as qvllm opens it, and as transformers does, apart from each other."""

    name: str
    folder: Path
    ours: Tokenizer
    hf: Any
    template: str


def find_folder(name: str) -> Path:
    """A checkpoint's folder; skips or fails where it is not there."""
    if name == "demo":
        return QWEN3
    root = os.environ.get("QVLLM_CHECKPOINTS")
    if not root:
        pytest.skip(f"QVLLM_CHECKPOINTS is not set, so the files of {name} are not at hand")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.fail(f"QVLLM_CHECKPOINTS is {root}, which has no folder {name}")
    needed = ["tokenizer_config.json", "vocab.json", "merges.txt"]
    if missing := [file for file in needed if not (folder / file).exists()]:
        pytest.fail(f"{folder} lacks {', '.join(missing)}")
    return folder


@pytest.mark.parametrize("there", [None, [], ["tokenizer_config.json", "vocab.json"]])
def test_a_folder_that_is_not_complete_fails(there: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QVLLM_CHECKPOINTS", str(tmp_path))
    if there is not None:
        (tmp_path / PUBLISHED[0]).mkdir()
    for name in there or []:
        (tmp_path / PUBLISHED[0] / name).touch()
    with pytest.raises(BaseException, match=r"has no folder|lacks .*merges\.txt") as caught:
        find_folder(PUBLISHED[0])
    assert isinstance(caught.value, pytest.fail.Exception)


def read_template(folder: Path) -> str:
    """The chat template, from whichever of its three places the checkpoint keeps it in."""
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for file in ("chat_template.json", "tokenizer_config.json"):
        if (folder / file).exists() and (text := json.loads((folder / file).read_text(encoding="utf-8")).get("chat_template")):
            return str(text)
    raise AssertionError(f"{folder} has no chat template")


@pytest.fixture(scope="module")
def open_checkpoint() -> Callable[[str], Opened]:
    opened: dict[str, Opened] = {}

    def open_once(name: str) -> Opened:
        folder = find_folder(name)
        if name not in opened:
            from transformers import AutoTokenizer

            ours = Tokenizer.open(folder)
            assert ours is not None
            opened[name] = Opened(name, folder, ours, AutoTokenizer.from_pretrained(folder), read_template(folder))
        return opened[name]

    return open_once


@pytest.fixture(params=["demo", *PUBLISHED])
def checkpoint(request: pytest.FixtureRequest, open_checkpoint: Callable[[str], Opened]) -> Opened:
    return open_checkpoint(request.param)


# ------------------------------------------------------------------------------------------------------ templates
@pytest.mark.parametrize(("name", "case"), ALL_CASES, ids=[f"{name}-{case}" for name, case in ALL_CASES])
def test_ids_of_a_conversation_equal_transformers(open_checkpoint: Callable[[str], Opened], name: str, case: str) -> None:
    checkpoint = open_checkpoint(name)
    messages, continues, variables = (CASES | ASR_CASES)[case]
    prompt = checkpoint.ours.render_chat(messages, continues, variables)
    expected = checkpoint.hf.apply_chat_template(
        messages,
        chat_template=checkpoint.template,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        **variables,
    )
    assert checkpoint.ours.encode(prompt) == expected


def rendered(checkpoint: Opened, case: str) -> str:
    return checkpoint.ours.render_chat(*(CASES | ASR_CASES)[case])


EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", ["demo", "Qwen3-0.6B"])
def test_qwen3s_template(open_checkpoint: Callable[[str], Opened], name: str) -> None:
    checkpoint = open_checkpoint(name)
    turn = "<|im_start|>user\n  What is 12 + 30?\n<|im_end|>\n"
    start = "<|im_start|>assistant\n"
    assert rendered(checkpoint, "one turn") == rendered(checkpoint, "thinking on") == turn + start
    assert rendered(checkpoint, "thinking off") == turn + start + EMPTY_THOUGHT
    assert rendered(checkpoint, "system") == "<|im_start|>system\nBe brief. <|im_end|>\n" + turn + start
    assert rendered(checkpoint, "several turns with reasoning") == (
        f"{turn}{start}42<|im_end|>\n<|im_start|>user\nAnd 1 more?<|im_end|>\n{start}43<|im_end|>\n"
        f"<|im_start|>user\nSure?<|im_end|>\n{start}"
    )
    assert rendered(checkpoint, "continued") == turn + start + EMPTY_THOUGHT + "The answer is"
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in rendered(
        checkpoint, "tool calls and responses"
    )


def test_qwen3_5s_template(open_checkpoint: Callable[[str], Opened]) -> None:
    checkpoint = open_checkpoint("Qwen3.5-0.8B")
    turn = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n"
    start = "<|im_start|>assistant\n"
    assert rendered(checkpoint, "one turn") == rendered(checkpoint, "thinking off") == turn + start + EMPTY_THOUGHT
    assert rendered(checkpoint, "thinking on") == turn + start + "<think>\n"
    assert rendered(checkpoint, "system") == f"<|im_start|>system\nBe brief.<|im_end|>\n{turn}{start}{EMPTY_THOUGHT}"
    assert rendered(checkpoint, "continued") == turn + start + EMPTY_THOUGHT + "The answer is"
    assert "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>" in rendered(
        checkpoint, "tool calls and responses"
    )
    for refused in ([SYSTEM], [USER, SYSTEM], [{"role": "critic", "content": "No."}, USER]):
        with pytest.raises(ArgumentError, match="chat template refuses these messages"):
            checkpoint.ours.render_chat(refused, False, {})


def test_qwen3_asrs_template(open_checkpoint: Callable[[str], Opened]) -> None:
    checkpoint = open_checkpoint("Qwen3-ASR-0.6B")
    audio = "<|audio_start|><|audio_pad|><|audio_end|>"
    frame = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(checkpoint, "audio") == frame.format("", audio)
    assert rendered(checkpoint, "audio and context") == frame.format("Names: " + TEXTS["Thai"], audio)
    assert rendered(checkpoint, "context in parts") == frame.format("a", "")


# ------------------------------------------------------------------------------------------------------ tokenizers
def from_merges(checkpoint: Opened, split: str) -> RawTokenizer:
    """Byte-level BPE built from the vocabulary and the merges alone, without added tokens."""
    bpe = models.BPE.from_file(str(checkpoint.folder / "vocab.json"), str(checkpoint.folder / "merges.txt"))
    built = RawTokenizer(bpe)
    built.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), behavior="isolated"), byte_level])
    built.decoder = decoders.ByteLevel()
    return built


def test_ids_equal_bpe_over_the_published_merges(checkpoint: Opened) -> None:
    config = json.loads((checkpoint.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    built = from_merges(checkpoint, config.get("pretokenize_regex", SPLIT))
    texts = [text for name, text in TEXTS.items() if name != "special tokens"]
    for text in [*texts, "".join(texts), *(f" {a}{b}" for a in texts for b in texts)]:
        assert checkpoint.ours.encode(text) == built.encode(text).ids
    if checkpoint.name == "Qwen3.5-0.8B":  # where the marks that its expression knows make a difference
        without_marks = from_merges(checkpoint, SPLIT)
        for name in ("Thai", "Hindi", "Arabic marks"):
            assert checkpoint.ours.encode(TEXTS[name]) != without_marks.encode(TEXTS[name]).ids, name


def test_ids_equal_transformers(checkpoint: Opened) -> None:
    texts = list(TEXTS.values())
    for text in [*texts, "".join(texts), *(f"{a}\n{b}" for a in texts for b in texts)]:
        assert checkpoint.ours.encode(text) == checkpoint.hf(text)["input_ids"]


def test_merges_count_in_their_own_order(open_checkpoint: Callable[[str], Opened]) -> None:
    tokenizer = open_checkpoint("Qwen3.5-0.8B").ours
    # The whole word has an id, 108918, that merges in the order of ids would reach.
    assert tokenizer.encode("加拿大") == [95984, 97048, 95779]
    assert tokenizer.decode([108918]) == "加拿大"


def test_nothing_is_added_at_either_end(checkpoint: Opened) -> None:
    tokenizer = checkpoint.ours
    assert tokenizer.encode("") == []
    for text in TEXTS.values():
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_every_digit_is_a_token_of_its_own(checkpoint: Opened) -> None:
    digits = [checkpoint.ours.encode(digit) for digit in "0123456789"]
    assert all(len(ids) == 1 for ids in digits)
    assert checkpoint.ours.encode("0123456789") == [ids[0] for ids in digits]
    assert checkpoint.ours.encode("x2048") == [*checkpoint.ours.encode("x"), *(digits[i][0] for i in (2, 0, 4, 8))]


def test_composed_and_decomposed_text_have_equal_ids(checkpoint: Opened) -> None:
    assert TEXTS["NFC"] != TEXTS["NFD"]
    assert checkpoint.ours.encode(TEXTS["NFC"]) == checkpoint.ours.encode(TEXTS["NFD"])


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        (
            "Qwen3-0.6B",
            {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|image_pad|>": 151655, "<think>": 151667}
            | {"<tool_call>": 151657, "</tool_response>": 151666, "<|repo_name|>": 151663, "</think>": 151668},
        ),
        (
            "Qwen3.5-0.8B",
            {"<|endoftext|>": 248044, "<|im_start|>": 248045, "<|im_end|>": 248046, "<|image_pad|>": 248056, "<think>": 248068}
            | {"<tool_call>": 248058, "</tool_response>": 248067, "<|audio_start|>": 248070, "<|audio_pad|>": 248076},
        ),
        (
            "Qwen3-ASR-0.6B",
            {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|audio_start|>": 151669}
            | {"<|audio_end|>": 151670, "<|audio_pad|>": 151676, "<asr_text>": 151704, "<non_speech>": 151675},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_added_tokens_have_the_published_ids(open_checkpoint: Callable[[str], Opened], name: str, ids: dict[str, int]) -> None:
    checkpoint = open_checkpoint(name)
    assert {token: checkpoint.ours.encode(token) for token in ids} == {token: [i] for token, i in ids.items()}
    kept = [token for token in ids if re.fullmatch(r"</?(think|tool_\w+|asr_text|non_speech)>|<\|repo_name\|>", token)]
    # Those that are not special stay in the text.
    assert checkpoint.ours.decode(list(ids.values())) == "".join(token for token in ids if token in kept)
    hf = checkpoint.ours.hf
    assert (hf.eos_token, hf.pad_token, hf.bos_token) == ("<|im_end|>", "<|endoftext|>", None)


@pytest.mark.parametrize("skip", [True, False])
def test_text_by_pieces_equals_the_whole(checkpoint: Opened, skip: bool) -> None:
    rng = random.Random(0)
    size = len(checkpoint.hf)
    added = sorted(checkpoint.hf.added_tokens_decoder)
    for _ in range(150):
        # Random ids are mostly broken UTF-8; ids above the last are rows of the embedding that belong to no token.
        ids = [rng.choice(added) if rng.random() < 0.1 else rng.randrange(size + 6) for _ in range(rng.randrange(1, 60))]
        check_pieces(checkpoint, ids, skip, rng)
    for text in TEXTS.values():
        check_pieces(checkpoint, checkpoint.ours.encode(text * 3), skip, rng)


def check_pieces(checkpoint: Opened, ids: list[int], skip: bool, rng: random.Random) -> None:
    detokenizer = checkpoint.ours.detokenizer(skip)
    whole = checkpoint.hf.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    start = 0
    while start < len(ids):
        count = rng.randint(1, 3)
        detokenizer.append(ids[start : start + count])
        start += count
        assert whole.startswith(detokenizer.text)
        sure = checkpoint.hf.decode(ids[:start], skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        # At most an unfinished character is held back.
        assert len(sure.rstrip("\ufffd")) <= len(detokenizer.text) <= len(sure)
    assert detokenizer.finish() == whole
