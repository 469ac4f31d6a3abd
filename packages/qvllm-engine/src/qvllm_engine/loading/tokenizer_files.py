"""A checkpoint's tokenizer, from its files."""

from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from qvllm_engine.errors import CheckpointError
from qvllm_engine.loading.json_file import read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True)
class TokenizerFiles:
    """What a folder says of its tokenizer.

    Attributes:
        backend: text to ids and back.
        special_tokens: name -> text, such as "eos_token" -> "<end>"; variables of chat templates.
        chat_template: a Jinja template; or several by name, as "default" and "tool_use"; None where there is none.
    """

    backend: Backend
    special_tokens: dict[str, str]
    chat_template: str | dict[str, str] | None


def read_tokenizer(folder: Path) -> TokenizerFiles | None:
    """The tokenizer of a checkpoint's folder, None where it has no tokenizer files. Code in the folder never runs.

    tokenizer.json is the tokenizer, and tokenizer_config.json may add tokens to it. Where only vocab.json and merges.txt are
    there, transformers builds it, which takes seconds.

    Raises:
        CheckpointError: the files can't be read.
    """
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    config = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    special = special_tokens(config)
    try:
        if (folder / "tokenizer.json").exists():
            backend = Backend.from_file(str(folder / "tokenizer.json"))
            add_tokens(backend, config.get("added_tokens_decoder", {}), special)
        else:
            backend = open_with_transformers(folder).backend_tokenizer
    except Exception as error:  # tokenizers raises Exception itself
        raise CheckpointError(f"the tokenizer in {folder} cannot be read: {error}") from error
    if not backend.get_vocab_size(with_added_tokens=False):
        raise CheckpointError(f"the tokenizer in {folder} has no vocabulary: download its tokenizer.json or vocab.json too")
    backend.no_truncation()
    backend.no_padding()
    return TokenizerFiles(backend, special, read_chat_template(folder, config))


def open_with_transformers(folder: Path) -> Any:
    """The tokenizer as transformers makes it of a folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)


def add_tokens(backend: Backend, added: dict[str, Any], special: dict[str, str]) -> None:
    """Add the tokens that stand in tokenizer_config.json alone, and mark as special what it calls so.

    Args:
        backend: the tokenizer of tokenizer.json.
        added: id -> fields of a token; tokenizer_config.json's ``added_tokens_decoder``.
        special: as ``special_tokens`` gives them.

    Raises:
        ValueError: a token can't get the id that the file gives it.
    """
    known = backend.get_added_tokens_decoder()
    for token_id, entry in sorted((int(i), entry) for i, entry in added.items()):
        token = AddedToken(**entry)
        if token_id not in known or known[token_id].special != token.special:
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        if backend.token_to_id(token.content) != token_id:
            raise ValueError(
                f"tokenizer_config.json gives {token.content!r} the id {token_id}, tokenizer.json"
                f" {backend.token_to_id(token.content)}"
            )
    known = backend.get_added_tokens_decoder()
    marked = {token.content for token in known.values() if token.special}
    backend.add_special_tokens([text for text in special.values() if text not in marked])


def special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The tokens that tokenizer_config.json names."""
    extra = config.get("extra_special_tokens")
    entries = {**config, **(extra if isinstance(extra, dict) else {})}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in entries.items()
        if name.endswith("_token") and not name.startswith("add_")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def read_chat_template(folder: Path, config: dict[str, Any]) -> str | dict[str, str] | None:
    """The chat template, from the first of the places where checkpoints keep it.

    Raises:
        CheckpointError: it is neither a text nor a list of named texts.
    """
    try:
        if (folder / "chat_template.jinja").exists():
            return (folder / "chat_template.jinja").read_text(encoding="utf-8")
        given = config.get("chat_template")
        if not given and (folder / "chat_template.json").exists():  # where processors keep it
            given = read_json(folder / "chat_template.json").get("chat_template")
        if isinstance(given, list):
            given = {entry["name"]: entry["template"] for entry in given}
        texts = given.values() if isinstance(given, dict) else [given or ""]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"a template must be a text, got {short(given)}")
    except (OSError, UnicodeError, LookupError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"the chat template in {folder} is neither a text nor a list of named texts: {what}") from error
    return given or None
