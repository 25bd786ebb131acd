"""Prompts by category for ``txdecode bench``; written here. A model without a chat template goes on with code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from txdecode.runtime.bench.measure import Unit
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates.prompts import CODE, CODE_PROMPTS, GatePrompt

_COPIES = ("code_edit", "json", "quote", "tool_call")

_TOOLS = (
    "You can call these functions: set_timer(minutes: int, label: str), add_item(list: str, item: str), "
    "send_mail(to: str, subject: str, text: str). Answer with one JSON object that has name and arguments.\n"
)

_TREES = (
    '[{"name": "oak", "height": 31, "leaf": "lobed", "evergreen": false}, '
    '{"name": "holly", "height": 9, "leaf": "spiny", "evergreen": true}, '
    '{"name": "ash", "height": 27, "leaf": "pinnate", "evergreen": false}, '
    '{"name": "yew", "height": 12, "leaf": "needle", "evergreen": true}]'
)

_LETTER = (
    "The ferry to the outer islands stopped running in November. Bread and post came by a fishing boat that summer "
    "visitors had never noticed. Its skipper, a woman of seventy, kept the accounts of the whole harbour in one blue "
    "notebook. When the ferry returned in April she wrote a last line under them and gave the notebook to the school."
)

_NOTES = "\n".join(
    f"Day {day}: {day * 7 % 23} samples at station {day % 5}, "
    f"wind from the {('north', 'east', 'south', 'west')[day % 4]}, "
    f"water {day * 3 % 17} degrees, {('no birds', 'gulls', 'two herons')[day % 3]} seen."
    for day in range(1, 61)
)


def _chat(name: str, category: str, text: str, most: int) -> GatePrompt:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    return GatePrompt(name, messages, most, category in _COPIES, category=category)


BUILT_IN: tuple[GatePrompt, ...] = (
    _chat(
        "code_edit-rename",
        "code_edit",
        f"Rename the function mean to average everywhere and repeat the whole file:\n```python\n{CODE}```",
        192,
    ),
    _chat(
        "code_edit-types",
        "code_edit",
        f"Add type hints to every function and repeat the whole file:\n```python\n{CODE}```",
        192,
    ),
    _chat("json-repeat", "json", f"Repeat this list unchanged: {_TREES}", 144),
    _chat(
        "json-field",
        "json",
        f'Add the field "planted": null to every object and repeat the list: {_TREES}',
        160,
    ),
    _chat("quote-all", "quote", f"Repeat this text word for word, in quotation marks:\n{_LETTER}", 112),
    _chat("quote-notebook", "quote", f"Quote every sentence that mentions the notebook:\n{_LETTER}", 96),
    _chat("tool_call-timer", "tool_call", f"{_TOOLS}The potatoes need 25 minutes.", 64),
    _chat("tool_call-list", "tool_call", f"{_TOOLS}Put oat milk on the list 'groceries'.", 64),
    _chat("chat-supper", "chat", "What should I cook tonight with rice, eggs and spinach?", 128),
    _chat("chat-garden", "chat", "Which vegetables grow well on a balcony that gets little sun?", 128),
    _chat(
        "reasoning-trip",
        "reasoning",
        "A train leaves at 9:40 and arrives at 12:05, with one stop of 15 minutes. How long does it move? Explain.",
        128,
    ),
    _chat(
        "reasoning-shelf",
        "reasoning",
        "A shelf of 90 cm holds books of 3 cm and 5 cm, twice as many thin ones as thick ones. How many of each?",
        128,
    ),
    _chat("long_context-summary", "long_context", f"Summarise these notes in three sentences.\n{_NOTES}", 96),
    _chat(
        "long_context-herons",
        "long_context",
        f"{_NOTES}\nList the days on which two herons were seen, with the wind of each.",
        128,
    ),
)

CONTINUED: tuple[GatePrompt, ...] = tuple(attrs.evolve(prompt, category="code") for prompt in CODE_PROMPTS)


def chosen(
    prompts: Sequence[GatePrompt], categories: Sequence[str], limit: int | None
) -> tuple[GatePrompt, ...]:
    """Prompts of the ``categories`` (all, where none is named), at most ``limit``. Raises ``InvalidRequest`` for a
    category that no prompt has."""
    known = tuple(dict.fromkeys(prompt.category or "none" for prompt in prompts))
    for category in categories:
        if category not in known:
            raise InvalidRequest(
                f"no prompt has the category '{category}'; they have {', '.join(known)}: name one of these"
            )
    found = [prompt for prompt in prompts if not categories or (prompt.category or "none") in categories]
    return tuple(found[:limit])


def units_of(prompts: Sequence[GatePrompt], batch: int) -> tuple[Unit, ...]:
    """Prompts as they are decoded: one by one, or in batches of one category (the last one of it may be smaller)."""
    if batch == 1:
        return tuple(Unit(prompt.name, prompt.category or "none", (prompt,)) for prompt in prompts)
    units = []
    for category in dict.fromkeys(prompt.category or "none" for prompt in prompts):
        members = [prompt for prompt in prompts if (prompt.category or "none") == category]
        for start in range(0, len(members), batch):
            name = f"{category}-batch{start // batch + 1}"
            units.append(Unit(name, category, tuple(members[start : start + batch])))
    return tuple(units)
