"""The text of one request while it grows: stop strings, and what may be shown already."""

from qvllm_engine.detokenizer import Detokenizer


class OutputText:
    """Text of the tokens so far, cut at the first stop string.

    Args:
        detokenizer: turns the request's tokens into text.
        stop: stop strings; they match across token boundaries.
        include_stop: the text ends after a stop string instead of before it.
        min_tokens: stop strings are not heeded before this many tokens.
    """

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...], include_stop: bool, min_tokens: int) -> None:
        self.stopped_by: str | None = None
        self._detokenizer = detokenizer
        self._stop = stop
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._text: str | None = None  # once a stop string is found

    def append(self, token_id: int) -> bool:
        """Take in a token; whether the text now holds a stop string that counts."""
        before = len(self._detokenizer.text)
        self._detokenizer.append([token_id])
        self._num_tokens += 1
        return self._num_tokens > self._min_tokens and self._cut(before)

    def end(self) -> bool:
        """No token follows, so what was held back counts now; whether it completes a stop string that counts."""
        before = len(self._detokenizer.text)
        self._detokenizer.finish()
        return self._num_tokens > self._min_tokens and self._cut(before)

    @property
    def final(self) -> str:
        """The text up to the stop string that was found, else all of it."""
        return self._detokenizer.finish() if self._text is None else self._text

    @property
    def certain(self) -> str:
        """The part that no later token can take back: without an ending that may be the start of a stop string."""
        if self._text is not None:
            return self._text
        text = self._detokenizer.text
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return text[:-length]
        return text

    def _cut(self, before: int) -> bool:
        """End the text at the first stop string that reaches past ``before`` characters."""
        text = self._detokenizer.text
        found = [(text.find(stop, max(before - len(stop) + 1, 0)), stop) for stop in self._stop]
        found = [(start, stop) for start, stop in found if start >= 0]
        if not found:
            return False
        start, self.stopped_by = min(found, key=lambda item: item[0])
        self._text = text[: start + len(self.stopped_by)] if self._include_stop else text[:start]
        return True
