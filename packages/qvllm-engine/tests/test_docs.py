"""The pages in docs/ name what the code has: every setting, every exported name, every method."""

import re
from ast import literal_eval
from dataclasses import fields
from pathlib import Path

import pytest

import qvllm_engine
from qvllm_engine import LLM, SamplingParams
from qvllm_engine.sampling_params import UNSUPPORTED

DOCS = Path(__file__).resolve().parents[3] / "docs"
if not DOCS.is_dir():
    pytest.skip("the documentation is in the repository, not in the package", allow_module_level=True)

SAMPLING = (DOCS / "SAMPLING.md").read_text(encoding="utf-8")
API = (DOCS / "API.md").read_text(encoding="utf-8")
FIELDS = {field.name: field.default for field in fields(SamplingParams)}


def rows_of(page: str, *titles: str) -> list[list[str]]:
    """The cells of all tables whose titles begin with these."""
    rows: list[list[str]] = []
    inside = False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        inside = bool(cells) and (inside or tuple(cells[: len(titles)]) == titles)
        if inside and cells[0].startswith("`"):
            rows.append(cells)
    return rows


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_tables_of_settings_have_every_field_once_with_its_default() -> None:
    rows = rows_of(SAMPLING, "field", "default")
    assert sorted(name for row in rows for name in names_in(row[0])) == sorted(FIELDS)
    assert {names_in(row[0])[0]: literal_eval(row[1]) for row in rows} == FIELDS


def test_the_comparison_has_every_field_and_every_refused_setting_once() -> None:
    states = [(name, row[1]) for row in rows_of(SAMPLING, "field", "qvllm") for name in names_in(row[0])]
    assert sorted(states) == sorted([(name, "acts") for name in FIELDS] + [(name, "refused") for name in UNSUPPORTED])


def test_the_order_of_application_is_told_alike() -> None:
    [first] = re.findall(r"^1\. (.+)\n", SAMPLING[SAMPLING.index("## The order of application") :], re.M)[:1]
    told = " ".join((SamplingParams.__doc__ or "").split())
    assert first.replace("`", "").rstrip(".") in told


def test_every_exported_name_is_in_the_reference() -> None:
    shown = re.findall(r"^\.\. auto(?:class|exception):: (\w+)$", API[: API.index("## Operators")], re.M)
    assert sorted(shown) == sorted(qvllm_engine.__all__)


def test_every_public_member_of_the_classes_with_members_is_in_the_reference() -> None:
    shown = dict(re.findall(r"^\.\. autoclass:: (\w+)\n +:members: (.+)$", API, re.M))
    assert "LLM" in shown
    for name, members in shown.items():
        kind = getattr(qvllm_engine, name)
        data = {field.name for field in fields(kind)} if kind is not LLM else set()
        public = {member for member in vars(kind) if not member.startswith("_")} - data
        assert set(members.split(", ")) == public, name


@pytest.mark.parametrize("kind", [getattr(qvllm_engine, name) for name in qvllm_engine.__all__])
def test_no_property_is_told_in_a_way_that_the_page_reads_as_a_type(kind: type) -> None:
    # In the first line of an attribute, Google's style has the type before a colon.
    texts = {name: value.__doc__ or "" for name, value in vars(kind).items() if isinstance(value, property)}
    assert [name for name, text in texts.items() if ": " in text.partition("\n")[0]] == []
