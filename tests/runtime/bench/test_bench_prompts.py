"""Prompt files, categories and batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from txdecode.runtime.bench.prompts import BUILT_IN, CONTINUED, chosen, units_of
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates.prompts import read_prompts

GOOD = {"id": "a", "category": "json", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_file_of_prompts_keeps_their_categories(tmp_path: Path) -> None:
    (prompt,) = read_prompts(written(tmp_path / "p.jsonl", "", GOOD))
    assert (prompt.name, prompt.category, prompt.max_tokens, prompt.repeats) == ("a", "json", 9, True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "JSONDecodeError"),
        ("7", "AttributeError"),
        ({**GOOD, "messages": "hello"}, "messages"),
        ({**GOOD, "messages": ["hello"]}, "messages"),
        ({**GOOD, "max_tokens": 0}, "max_tokens"),
        ({**GOOD, "max_tokens": "9"}, "max_tokens"),
        ({**GOOD, "max_tokens": True}, "max_tokens"),
        ({**GOOD, "category": 3}, "category"),
        ({"id": "b", "max_tokens": 9}, "messages"),
        (GOOD, "the id 'a' of line 1 again"),
    ],
)
def test_a_bad_line_is_named(line: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="line 3") as caught:
        read_prompts(written(tmp_path / "p.jsonl", GOOD, "", line))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_built_in_set_has_every_category() -> None:
    assert {prompt.category for prompt in BUILT_IN} == {
        *("code_edit", "json", "quote", "tool_call", "chat", "reasoning", "long_context")
    }
    assert len({prompt.name for prompt in BUILT_IN}) == len(BUILT_IN)
    assert {prompt.category for prompt in CONTINUED} == {"code"}
    assert all(prompt.text for prompt in CONTINUED)


def test_categories_and_limit_choose() -> None:
    found = chosen(BUILT_IN, ("json", "chat"), 3)
    assert [prompt.category for prompt in found] == ["json", "json", "chat"]
    assert chosen(BUILT_IN, (), None) == BUILT_IN
    with pytest.raises(
        InvalidRequest, match=r"no prompt has the category 'poetry'; they have code_edit, json"
    ):
        chosen(BUILT_IN, ("poetry",), None)


def test_batches_keep_to_a_category() -> None:
    units = units_of(BUILT_IN[:5], 2)
    assert [(unit.name, len(unit.prompts)) for unit in units] == [
        ("code_edit-batch1", 2),
        ("json-batch1", 2),
        ("quote-batch1", 1),
    ]
    assert [unit.name for unit in units_of(BUILT_IN[:2], 1)] == ["code_edit-rename", "code_edit-types"]
