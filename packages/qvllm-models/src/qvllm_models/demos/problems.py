"""Problems with one right answer, made by a seeded generator: what the demo checkpoint was trained to solve.

Five kinds: `arithmetic` (word problems of one to three steps), `sort` (numbers or words), `copy` (a code or a sentence
given early, then distractor text), `lookup` (one cell of a table) and `sum` (a plain sum or difference of two whole
numbers from 0 to 99). Every solution ends in a line `#### ANSWER`, so one checker serves all. A problem is held out if
the hash of its text falls in one bucket of `HELD_OUT_BUCKETS`; training drops those, so the two sets are disjoint by
construction. They are disjoint in texts: of a held-out sum, training has seen the same numbers in other wordings.

Needs the standard library alone.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

KINDS = ("arithmetic", "sort", "copy", "lookup", "sum")
HELD_OUT_BUCKETS = 16
REPLACEMENTS = 1000
MARKER = "#### "


@dataclass(frozen=True)
class Problem:
    """One question and its answer. `worked` holds the lines a solution shows before the answer line; it may be empty."""

    prompt_text: str
    answer: str
    kind: str
    worked: str = ""

    @property
    def solution(self) -> str:
        """The assistant's whole reply, without the end-of-turn token."""
        return f"{self.worked}\n{MARKER}{self.answer}" if self.worked else f"{MARKER}{self.answer}"


def is_held_out(prompt_text: str) -> bool:
    """Whether the text belongs to the held-out set, which training never sees."""
    digest = hashlib.blake2b(prompt_text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_BUCKETS == 0


def problem_stream(kind: str, seed: int, held_out: bool = True, kinds: tuple[str, ...] = KINDS) -> Iterator[Problem]:
    """Endless problems of one kind, or of `kinds`, which count for `mixed` alone, in turn; equal arguments give equal problems.

    Raises ValueError if a kind is unknown.
    """
    kinds = kinds if kind == "mixed" else (kind,)
    for each in kinds:
        if each not in KINDS:
            raise ValueError(f"unknown kind of problem {each!r}: use one of {', '.join((*KINDS, 'mixed'))}")
    rng = random.Random(f"{kind}/{seed}/{held_out}")
    while True:
        for each in kinds:
            problem = _MAKERS[each](rng)
            while is_held_out(problem.prompt_text) != held_out:
                problem = _MAKERS[each](rng)
            yield problem


def make_problems(kind: str, count: int, seed: int, held_out: bool = True, kinds: tuple[str, ...] = KINDS) -> list[Problem]:
    """`count` problems with distinct texts. `mixed` takes `kinds`, which count for it alone, in turn: each has an equal share.

    `held_out=True` gives problems that training never saw, False gives problems of the training stream.
    Raises ValueError if a kind is unknown, or if `count` is negative or more than there are distinct texts.
    """
    if count < 0:
        raise ValueError(f"count is {count}: give a number of problems of at least 0")
    spare = {each: problem_stream(each, seed + 1_000_003, held_out) for each in KINDS}
    distinct: dict[str, Problem] = {}
    for drawn in islice(problem_stream(kind, seed, held_out, kinds), count):
        candidates = chain([drawn], islice(spare[drawn.kind], REPLACEMENTS))
        problem = next((each for each in candidates if each.prompt_text not in distinct), None)
        if problem is None:
            some = sum(each.kind == drawn.kind for each in distinct.values())
            raise ValueError(f"count is {count}: no more than {some} distinct problems of kind {drawn.kind!r} were found")
        distinct[problem.prompt_text] = problem
    return list(distinct.values())


def chat_prompt(problem: Problem, thinking: bool = True) -> str:
    """The ChatML prompt, as Qwen3's template renders one user message with add_generation_prompt.

    `thinking=False` appends the empty think block, as the template does for enable_thinking=False.
    """
    think = "" if thinking else "<think>\n\n</think>\n\n"
    return f"<|im_start|>user\n{problem.prompt_text}<|im_end|>\n<|im_start|>assistant\n{think}"


def is_right(problem: Problem, text: str) -> bool:
    """Whether the last line of a reply (special tokens stripped) is `#### ` and exactly the answer."""
    return text.strip().rpartition("\n")[2].rstrip() == MARKER + problem.answer


# ---------------------------------------------------------------------------------------------------- word lists
def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_HE = _words("Adam Ben Carl David Eric Frank Hugo Ivan Jack Leo Max Noah Oscar Paul Sam Tom")
_SHE = _words("Anna Bella Clara Diana Emma Fiona Grace Helen Iris Julia Kate Lucy Mia Nina Rosa Zoe")
_NAMES = _HE + _SHE
_COUNTED = _words("apples pears plums eggs coins shells stamps cards marbles books pens buttons stones stickers cookies balls")
_BOXES = _words("boxes bags baskets crates jars packs")
_THINGS = _words(
    "lamp chair table clock mirror carpet kettle basket bottle candle ladder hammer pillow blanket pencil drum "
    "guitar camera radio helmet bucket shovel teapot wallet window ribbon saddle barrel anchor engine magnet rocket"
)
_COLOURS = _words("red blue green yellow black white brown purple orange pink gray silver")
_CITIES = _words("Paris London Rome Madrid Vienna Oslo Dublin Prague Berlin Lisbon Athens Cairo")
_ANIMALS = _words("fox owl bear wolf horse rabbit turtle eagle tiger whale mouse goat duck frog snake camel")
_ADJECTIVES = _words("quiet brave clever happy gentle proud tired hungry lazy wild shy calm")
_ACTS = _words("paints carries follows watches hides finds steals guards cleans breaks moves builds")
_SPOTS = _words("river bridge barn forest castle garden harbor tower market valley cave mill")
_SORTED = _words(
    "anchor apple bread bridge candle castle desert dragon eagle engine farmer forest garden guitar hammer honey "
    "island ivory jacket jungle kettle kitten ladder lemon marble mirror needle nurse ocean orange pencil pillow "
    "queen quilt rabbit river saddle silver table tiger uncle urban valley violin window winter yellow zebra"
)
_PLACES = _words("gate cellar office garage attic studio library kitchen stable workshop")
_SIDES = _words("north south east west upper lower old new")
_WEATHER = _words("rain snow wind fog hail sunshine")
_DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_JOBS = _words("baker teacher doctor sailor farmer painter driver singer")
_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_CODE_DIGITS = "23456789"


def _sample(rng: random.Random, items: Sequence[str], count: int) -> list[str]:
    """Distinct items in random order; our own, because the standard one may change between Python versions."""
    pool = list(items)
    return [pool.pop(rng.randrange(len(pool))) for _ in range(count)]


# ---------------------------------------------------------------------------------------------------- arithmetic
class _Story:
    """A word problem in the making: its sentences, its worked lines and the number so far."""

    def __init__(self, rng: random.Random) -> None:
        self.name, self.friend = _sample(rng, _NAMES, 2)
        self.he, self.him = ("he", "him") if self.name in _HE else ("she", "her")
        self.item = rng.choice(_COUNTED)
        self.said: list[str] = []
        self.lines: list[str] = []
        self.value = 0

    def step(self, left: int, sign: str, right: int) -> int:
        value = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]
        self.lines.append(f"{left} {sign} {right} = {value}")
        self.value = value
        return value

    def problem(self, question: str) -> Problem:
        return Problem(" ".join([*self.said, question]), str(self.value), "arithmetic", "\n".join(self.lines))


def _start(rng: random.Random, story: _Story) -> None:
    name, item = story.name, story.item
    if rng.random() < 0.6:
        story.value = n = rng.randrange(5, 60)
        said = (f"{name} has {n} {item}.", f"{name} starts the day with {n} {item}.", f"{name} owns {n} {item}.")
        story.said.append(rng.choice(said))
        return
    count, each, box = rng.randrange(2, 10), rng.randrange(2, 11), rng.choice(_BOXES)
    said = (
        f"{name} has {count} {box} with {each} {item} in each.",
        f"{name} fills {count} {box}. There are {each} {item} in each of them.",
        f"There are {count} {box} in the room. {name} puts {each} {item} into each.",
    )
    story.said.append(rng.choice(said))
    story.step(count, "*", each)


def _event(rng: random.Random, story: _Story) -> None:
    he, him, item, friend = story.he, story.him, story.item, story.friend
    if rng.random() < 0.5 or story.value < 3:
        k = rng.randrange(2, 40)
        said = (
            f"Then {he} buys {k} more.",
            f"Then {he} finds {k} more {item}.",
            f"{friend} gives {him} {k} {item}.",
            f"{friend} brings {k} more.",
        )
        story.step(story.value, "+", k)
    else:
        k = rng.randrange(2, min(story.value, 40))
        said = (
            f"Then {he} gives {k} {item} to {friend}.",
            f"Then {he} loses {k} of them.",
            f"Then {he} sells {k} {item}.",
            f"{friend} takes {k} away.",
        )
        story.step(story.value, "-", k)
    story.said.append(rng.choice(said))


def _journey(rng: random.Random) -> Problem:
    """A start, then events, then a count, an equal share or a sale: up to three steps."""
    story = _Story(rng)
    name, he, item = story.name, story.he, story.item
    _start(rng, story)
    for _ in range(rng.randrange(1 - len(story.lines), 3 - len(story.lines))):
        _event(rng, story)
    how = rng.random()
    shares = [f for f in range(2, 10) if story.value % f == 0 and 0 < story.value <= 90]
    if how < 0.25 and shares and len(story.lines) < 3:
        friends = rng.choice(shares)
        story.said.append(f"Then {he} shares all the {item} equally among {friends} friends.")
        story.step(story.value, "/", friends)
        return story.problem(f"How many {item} does each friend get?")
    if how < 0.5 and 2 <= story.value <= 12 and len(story.lines) < 3:
        price = rng.randrange(2, 10)
        story.said.append(f"Then {he} sells all the {item} for {price} dollars each.")
        story.step(story.value, "*", price)
        return story.problem(f"How many dollars does {name} get?")
    if len(story.lines) < 3 and (not story.lines or rng.random() < 0.4):
        _event(rng, story)
    ask = (
        f"How many {item} does {name} have now?",
        f"How many {item} does {name} have in the end?",
        f"How many {item} are there now?",
    )
    return story.problem(rng.choice(ask))


def _compare(rng: random.Random) -> Problem:
    """Two people, one given by the difference to the other; asked for the second or for both together."""
    story = _Story(rng)
    name, friend, item = story.name, story.friend, story.item
    first = rng.randrange(10, 60)
    more = rng.random() < 0.5
    k = rng.randrange(2, 40) if more else rng.randrange(2, first)
    story.said = [f"{name} has {first} {item}.", f"{friend} has {k} {'more' if more else 'fewer'} {item} than {name}."]
    second = story.step(first, "+" if more else "-", k)
    if rng.random() < 0.4:
        return story.problem(f"How many {item} does {friend} have?")
    story.step(first, "+", second)
    return story.problem(f"How many {item} do they have together?")


def _shop(rng: random.Random) -> Problem:
    """Some of one thing, some of another, at prices; asked for the total, or for what is left of a sum of money."""
    story = _Story(rng)
    thing, other = _sample(rng, _THINGS, 2)
    prices = [rng.randrange(2, 10), rng.randrange(2, 10)]
    counts = [rng.randrange(2, 10), rng.randrange(2, 10)]
    if rng.random() < 0.4:
        story.said = [f"A {thing} costs {prices[0]} dollars.", f"{story.name} buys {counts[0]} of them."]
        cost = story.step(counts[0], "*", prices[0])
        purse = cost + rng.randrange(1, 40)
        story.said.append(f"At first {story.he} had {purse} dollars.")
        story.step(purse, "-", cost)
        return story.problem(f"How many dollars does {story.name} have left?")
    story.said = [f"A {thing} costs {prices[0]} dollars and a {other} costs {prices[1]} dollars."]
    story.said.append(f"{story.name} buys {counts[0]} of the first and {counts[1]} of the second.")
    left = story.step(counts[0], "*", prices[0])
    right = story.step(counts[1], "*", prices[1])
    story.step(left, "+", right)
    return story.problem(f"How many dollars does {story.he} pay?")


def _arithmetic(rng: random.Random) -> Problem:
    pick = rng.random()
    return (_journey if pick < 0.6 else _compare if pick < 0.8 else _shop)(rng)


# ---------------------------------------------------------------------------------------------------- sort
def _sort(rng: random.Random) -> Problem:
    falling = rng.random() < 0.4
    if rng.random() < 0.5:
        numbers = [int(n) for n in _sample(rng, [str(n) for n in range(1, 100)], rng.randrange(3, 9))]
        items, ordered = [str(n) for n in numbers], [str(n) for n in sorted(numbers, reverse=falling)]
        what, order = "numbers", "from largest to smallest" if falling else "from smallest to largest"
    else:
        items = _sample(rng, _SORTED, rng.randrange(3, 8))
        ordered = sorted(items, reverse=falling)
        what, order = "words", "from Z to A" if falling else "from A to Z"
    given = ", ".join(items)
    text = rng.choice(
        (
            f"Sort these {what} {order}: {given}",
            f"Here are some {what}: {given}. Please sort them {order}.",
            f"Put the {what} in order, {order}.\n{given}",
            f"Write these {what} {order}: {given}.",
        )
    )
    return Problem(text, ", ".join(ordered), "sort")


# ---------------------------------------------------------------------------------------------------- copy
def _code(rng: random.Random) -> str:
    groups = []
    for _ in range(rng.randrange(2, 4)):
        groups.append(rng.choice(_CODE_LETTERS) + rng.choice(_CODE_DIGITS) + rng.choice(_CODE_LETTERS + _CODE_DIGITS))
    return "-".join(groups)


def _sentence(rng: random.Random) -> str:
    subject, thing = rng.choice(_ANIMALS), rng.choice(_THINGS)
    return (
        f"the {rng.choice(_ADJECTIVES)} {subject} {rng.choice(_ACTS)} the {rng.choice(_COLOURS)} {thing} "
        f"near the {rng.choice(_SPOTS)}"
    )


def _distractor(rng: random.Random) -> str:
    day, name, city, job, weather = (rng.choice(w) for w in (_DAYS, _NAMES, _CITIES, _JOBS, _WEATHER))
    number = rng.randrange(2, 100)
    pick = rng.randrange(8)
    if pick == 0:
        return f"On {day} there was {weather} in {city}."
    if pick == 1:
        return f"{name} works as a {job} in {city}."
    if pick == 2:
        return f"The {job} sold {number} {rng.choice(_COUNTED)} on {day}."
    if pick == 3:
        return f"{name} saw a {rng.choice(_COLOURS)} {rng.choice(_ANIMALS)} by the {rng.choice(_SPOTS)}."
    if pick == 4:
        return f"It takes {number} minutes to walk from the {rng.choice(_SPOTS)} to the {rng.choice(_PLACES)}."
    if pick == 5:
        return f"The {rng.choice(_ADJECTIVES)} {job} bought a {rng.choice(_THINGS)} for {number} dollars."
    if pick == 6:
        return f"After the {weather}, {name} took the train to {city}."
    return f"Bus {number} leaves for {city} every {day}."


def _distractors(rng: random.Random) -> list[str]:
    """Mostly short, some of several hundred tokens: the answer then lies many cache blocks back."""
    pick = rng.random()
    low, high = (2, 10) if pick < 0.6 else (10, 25) if pick < 0.88 else (25, 50) if pick < 0.97 else (50, 72)
    return [_distractor(rng) for _ in range(rng.randrange(low, high))]


def _copy(rng: random.Random) -> Problem:
    if rng.random() < 0.35:
        answer = _sentence(rng)
        said = (f"Remember this sentence: {answer}.", f"The note says: {answer}.", f"Keep this line in mind: {answer}.")
        facts = [rng.choice(said)]
        question = rng.choice(("Which sentence was given at the start?", "Repeat the sentence from the beginning."))
    else:
        count = rng.randrange(1, 4)
        pairs = zip(_sample(rng, _SIDES, count), _sample(rng, _PLACES, count), strict=True)
        labels = [f"{side} {place}" for side, place in pairs]
        codes = [_code(rng) for _ in labels]
        facts = [f"The code for the {label} is {code}." for label, code in zip(labels, codes, strict=True)]
        asked = rng.randrange(len(labels))
        answer = codes[asked]
        question = rng.choice((f"What is the code for the {labels[asked]}?", f"Give the code for the {labels[asked]}."))
    gap = rng.choice((" ", "\n"))
    return Problem(gap.join([*facts, *_distractors(rng), question]), answer, "copy")


# ---------------------------------------------------------------------------------------------------- lookup
def _column(rng: random.Random, name: str, rows: int) -> list[str]:
    if name in ("price", "stock", "weight"):
        return _sample(rng, [str(n) for n in range(2, 100)], rows)
    words = _COLOURS if name == "color" else _CITIES
    return _sample(rng, words, rows)


def _table(rng: random.Random, names: list[str], rows: list[list[str]]) -> str:
    style = rng.randrange(3)
    if style == 0:
        return "\n".join(" | ".join(row) for row in (["item", *names], *rows))
    if style == 1:
        return "\n".join(",".join(row) for row in (["item", *names], *rows))
    return "\n".join(f"{row[0]}: " + ", ".join(f"{n} {v}" for n, v in zip(names, row[1:], strict=True)) for row in rows)


def _lookup(rng: random.Random) -> Problem:
    names = _sample(rng, ("price", "stock", "weight", "color", "city"), rng.randrange(1, 4))
    count = rng.randrange(3, 11)
    keys = _sample(rng, _THINGS, count)
    columns = [_column(rng, name, count) for name in names]
    rows = [[key, *(column[i] for column in columns)] for i, key in enumerate(keys)]
    row, col = rng.randrange(count), rng.randrange(len(names))
    key, name, value = keys[row], names[col], columns[col][row]
    table = _table(rng, names, rows)
    if rng.random() < 0.3:
        question, answer = f"Which item has the {name} {value}?", key
    else:
        question, answer = rng.choice((f"What is the {name} of the {key}?", f"Look up the {name} of the {key}.")), value
    texts = (f"Here is a table.\n{table}\n{question}", f"{question}\n{table}", f"Read the table.\n\n{table}\n\n{question}")
    text = rng.choice(texts)
    return Problem(text, answer, "lookup", f"The {name} of the {key} is {value}.")


# ---------------------------------------------------------------------------------------------------- sum
def _operand(rng: random.Random) -> int:
    """0 to 99. One digit comes often: people type small sums first."""
    return rng.randrange(10 if rng.random() < 0.2 else 100)


def _sum(rng: random.Random) -> Problem:
    left, right = _operand(rng), _operand(rng)
    if rng.random() < 0.5:
        sign, word, order, answer = "+", "plus", f"Add {left} and {right}.", left + right
    else:
        sign, word, order, answer = "-", "minus", f"Subtract {right} from {left}.", left - right
    term = f"{left} {sign} {right}"
    text = rng.choice((f"What is {term}?", f"{term} =", f"What is {left} {word} {right}?", order, f"How much is {term}?"))
    return Problem(text, str(answer), "sum", f"{term} = {answer}")


_MAKERS = {"arithmetic": _arithmetic, "sort": _sort, "copy": _copy, "lookup": _lookup, "sum": _sum}
