"""The demo's problems: right answers, a strict checker, equal seeds, and a held-out set that training never sees."""

import hashlib
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvllm_models.demos.problems import KINDS, MARKER, Problem, chat_prompt, is_held_out, is_right, make_problems

ANY_PROBLEM = st.builds(
    lambda kind, seed: make_problems(kind, 1, seed)[0], st.sampled_from(KINDS), st.integers(min_value=0, max_value=2**63)
)
# Making a held-out problem takes a varying number of draws.
UNHURRIED = settings(deadline=None, max_examples=50)


def texts(problems: list[Problem]) -> list[str]:
    return [problem.prompt_text for problem in problems]


def test_equal_arguments_give_equal_problems_and_other_seeds_give_others() -> None:
    assert make_problems("mixed", 50, 7) == make_problems("mixed", 50, 7)
    assert not set(texts(make_problems("mixed", 50, 7))) & set(texts(make_problems("mixed", 50, 8)))


@pytest.mark.parametrize(
    ("kinds", "digest"),
    [
        (KINDS[:4], "9079affc2e485449097d3578d9553b036fdbf0d267fbf227147cd8103c1d2d18"),  # those the tokenizer was made from
        (KINDS, "c0bf5e72b6fd0be699da3c32968e66fbba1ed5829d2cbb389c1805ab265e79f1"),
    ],
)
def test_the_problems_are_those_that_the_checkpoint_was_trained_on(kinds: tuple[str, ...], digest: str) -> None:
    problems = make_problems("mixed", 200, 0, kinds=kinds)
    joined = "\0".join(f"{p.prompt_text}\0{p.solution}" for p in problems)
    assert hashlib.sha256(joined.encode()).hexdigest() == digest


@pytest.mark.parametrize("held_out", [True, False])
def test_mixed_has_the_kinds_in_equal_shares_and_no_text_twice(held_out: bool) -> None:
    problems = make_problems("mixed", 2500, 3, held_out)
    assert len(set(texts(problems))) == 2500
    assert Counter(p.kind for p in problems) == dict.fromkeys(KINDS, 500)


def test_mixed_takes_the_named_kinds_alone() -> None:
    assert [p.kind for p in make_problems("mixed", 4, 3, kinds=("sum", "sort"))] == ["sum", "sort", "sum", "sort"]


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_and_training_problems_are_disjoint(kind: str) -> None:
    held_out, training = make_problems(kind, 300, 0), make_problems(kind, 300, 0, held_out=False)
    assert all(is_held_out(text) for text in texts(held_out))
    assert not any(is_held_out(text) for text in texts(training))


def test_the_held_out_share_is_a_sixteenth_of_all_texts() -> None:
    share = sum(is_held_out(f"text {n}") for n in range(16_000)) / 16_000
    assert 0.05 < share < 0.075


def test_every_line_of_arithmetic_holds_and_the_last_one_is_the_answer() -> None:
    operations = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__truediv__}
    for problem in make_problems("arithmetic", 500, 1):
        lines = problem.worked.split("\n")
        assert 1 <= len(lines) <= 3
        for line in lines:
            left, sign, right, result = re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\d+)", line).groups()
            assert operations[sign](int(left), int(right)) == int(result), problem
        assert problem.answer == result


def test_the_numbers_of_an_arithmetic_text_are_those_of_its_steps() -> None:
    for problem in make_problems("arithmetic", 500, 2):
        given_numbers = {int(n) for n in re.findall(r"\d+", problem.prompt_text)}
        results = {int(line.rpartition(" = ")[2]) for line in problem.worked.split("\n")}
        used = {int(n) for line in problem.worked.split("\n") for n in re.findall(r"\d+", line.partition("=")[0])}
        assert given_numbers <= used <= given_numbers | results, problem


def test_sorting_answers_hold_the_given_items_in_the_asked_order() -> None:
    for problem in make_problems("sort", 500, 1):
        answer = problem.answer.split(", ")
        text = problem.prompt_text.replace("in order, from", "")
        listed = max(re.findall(r"\w+(?:, \w+)+", text), key=len).split(", ")
        falling = "from largest to smallest" in problem.prompt_text or "from Z to A" in problem.prompt_text
        key = int if answer[0].isdigit() else str
        assert answer == sorted(listed, key=key, reverse=falling), problem


def test_copied_answers_stand_once_and_before_the_distractors() -> None:
    for problem in make_problems("copy", 500, 1):
        assert problem.prompt_text.count(problem.answer) == 1
        assert problem.prompt_text.index(problem.answer) < 150
        asked = re.search(r"(?:What is|Give) the code for the (\w+ \w+)[.?]$", problem.prompt_text)
        if asked:
            assert f"The code for the {asked[1]} is {problem.answer}." in problem.prompt_text


def test_copying_reaches_several_thousand_characters_back() -> None:
    longest = max(texts(make_problems("copy", 500, 1)), key=len)
    assert len(longest) > 2000


def test_looked_up_cells_are_in_the_row_and_column_of_the_question() -> None:
    for problem in make_problems("lookup", 500, 1):
        column, key, value = re.fullmatch(r"The (\w+) of the (\w+) is (\w+)\.", problem.worked).groups()
        lines = problem.prompt_text.split("\n")
        row = next(line for line in lines if re.match(rf"{key}( \||,|:)", line))
        if row.startswith(f"{key}:"):
            assert f"{column} {value}" in row.removeprefix(f"{key}: ").split(", ")
        else:
            split = " | " if " | " in row else ","
            header = next(line for line in lines if line.startswith(f"item{split}")).split(split)
            assert row.split(split)[header.index(column)] == value
        assert problem.answer == (key if "Which item" in problem.prompt_text else value)


SUM_WORDINGS = {
    r"What is (?P<left>\d+) (?P<sign>[+-]) (?P<right>\d+)\?",
    r"(?P<left>\d+) (?P<sign>[+-]) (?P<right>\d+) =",
    r"What is (?P<left>\d+) (?P<sign>plus|minus) (?P<right>\d+)\?",
    r"How much is (?P<left>\d+) (?P<sign>[+-]) (?P<right>\d+)\?",
    r"(?P<sign>Add) (?P<left>\d+) and (?P<right>\d+)\.",
    r"(?P<sign>Subtract) (?P<right>\d+) from (?P<left>\d+)\.",
}


def test_the_answer_of_a_sum_is_what_its_text_asks_in_every_wording() -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    numbers: set[int] = set()
    answers: set[int] = set()
    for problem in make_problems("sum", 2000, 1):
        (wording,) = (each for each in SUM_WORDINGS if re.fullmatch(each, problem.prompt_text))
        found = re.fullmatch(wording, problem.prompt_text)
        left, right, sign = int(found["left"]), int(found["right"]), found["sign"]
        plus = sign in ("+", "plus", "Add")
        assert int(problem.answer) == (left + right if plus else left - right), problem
        assert problem.solution == f"{left} {'+' if plus else '-'} {right} = {problem.answer}\n#### {problem.answer}"
        seen[wording, plus] += 1
        numbers |= {left, right}
        answers.add(int(problem.answer))
    # Each operation has the four wordings that serve both and one of its own, about evenly.
    assert len(seen) == 10
    assert min(seen.values()) > 130
    assert numbers == set(range(100))
    assert min(answers) < -80
    assert max(answers) > 180


@UNHURRIED
@given(ANY_PROBLEM)
def test_the_checker_takes_the_solution_and_the_bare_answer_line(problem: Problem) -> None:
    assert is_right(problem, problem.solution)
    assert is_right(problem, f"{MARKER}{problem.answer}\n")
    assert is_right(problem, f"#### 1\nNo, wait.\n{MARKER}{problem.answer}")


@UNHURRIED
@given(ANY_PROBLEM, st.text(max_size=20))
def test_the_checker_takes_no_other_last_line(problem: Problem, other: str) -> None:
    if other.split() != problem.answer.split():
        assert not is_right(problem, MARKER + other)
    if other.strip():
        assert not is_right(problem, f"{problem.solution}\n{other}")


@UNHURRIED
@given(ANY_PROBLEM)
def test_the_checker_refuses_near_misses(problem: Problem) -> None:
    answer = problem.answer
    for wrong in (answer, f"####{answer}", f"### {answer}", f"#### {answer}.", f"#### {answer[:-1]}", f"#### {answer}0"):
        assert not is_right(problem, wrong)
    assert not is_right(problem, "")
    assert not is_right(problem, f"{problem.solution} {answer}")


def test_an_unknown_kind_and_a_negative_count_are_refused() -> None:
    with pytest.raises(ValueError, match="'algebra': use one of arithmetic, sort, copy, lookup, sum, mixed"):
        make_problems("algebra", 1, 0)
    with pytest.raises(ValueError, match="unknown kind of problem 'algebra'"):
        make_problems("mixed", 1, 0, kinds=("sort", "algebra"))
    with pytest.raises(ValueError, match="count is -1"):
        make_problems("sort", -1, 0)
    assert make_problems("sort", 0, 0) == []


def test_more_problems_than_there_are_texts_are_refused() -> None:
    # Ten wordings of 100 x 100 pairs, a sixteenth of them held out.
    with pytest.raises(ValueError, match=r"count is 7000: no more than 6\d{3} distinct problems of kind 'sum' were found"):
        make_problems("sum", 7000, 0)


@UNHURRIED
@given(ANY_PROBLEM)
def test_the_prompt_is_chatml(problem: Problem) -> None:
    prompt = chat_prompt(problem)
    assert prompt == f"<|im_start|>user\n{problem.prompt_text}<|im_end|>\n<|im_start|>assistant\n"
    assert chat_prompt(problem, thinking=False) == prompt + "<think>\n\n</think>\n\n"


def test_importing_the_problems_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, qvllm_models.demos.problems as p; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
