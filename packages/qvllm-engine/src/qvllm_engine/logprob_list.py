"""Log probabilities of a request's tokens: numbers in arrays, and objects for the tokens that somebody looks at."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from qvllm_engine.outputs import TokenLogprob

if TYPE_CHECKING:  # whoever reads outputs alone needs no numpy
    from numpy.typing import NDArray


class LogprobRows(NamedTuple):
    """Log probabilities of some tokens in a row, and of the most likely ones beside each.

    Attributes:
        tokens: their ids.
        chosen: ``[rows]`` float32, of the tokens.
        rank: ``[rows]`` int64, 1 for the most likely.
        values: ``[rows, k]`` float32, of the k most likely, falling.
        ids: ``[rows, k]`` int64, their ids.
    """

    tokens: "Sequence[int]"
    chosen: "NDArray[Any]"
    rank: "NDArray[Any]"
    values: "NDArray[Any]"
    ids: "NDArray[Any]"


Entry = TypeVar("Entry", bound=dict[int, TokenLogprob] | None)


class LogprobList(Sequence[Entry]):
    """One dict per token: the token itself and the most likely ones, by id; None for a token that nothing predicts.

    It reads like a list and equals the list of the same entries; ``list(...)`` makes one. Thousands of dicts take seconds to
    make, so each is made when it is looked at. Copies and pickles are plain lists.
    """

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of  # of a token alone
        self._rows: list[tuple[LogprobRows, int] | None] = []

    def append_none(self) -> None:
        """Add a token that nothing predicts."""
        self._rows.append(None)

    def extend(self, rows: LogprobRows) -> None:
        """Add tokens, whose arrays are kept and must not change."""
        self._rows.extend((rows, index) for index in range(len(rows.tokens)))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._entry(place) for place in self._rows[index]]
        return self._entry(self._rows[index])

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry, self._rows)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | LogprobList) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # without the tokenizer behind ``text_of``

    def __repr__(self) -> str:
        return repr(list(self))

    def _entry(self, place: tuple[LogprobRows, int] | None) -> Any:
        if place is None:
            return None
        rows, index = place
        entry: dict[int, TokenLogprob] = {}
        before, first = None, 1
        for rank, (token, value) in enumerate(zip(rows.ids[index].tolist(), rows.values[index].tolist(), strict=True), start=1):
            if value != before:  # equal values share the rank of the first of them
                before, first = value, rank
            entry[token] = TokenLogprob(value, first, self._text_of(token))
        token = rows.tokens[index]
        if token not in entry:
            entry[token] = TokenLogprob(float(rows.chosen[index]), int(rows.rank[index]), self._text_of(token))
        return entry
