"""Chat templates: the Jinja dialect that model makers write them in, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from txdecode.runtime.text_errors import ChatRefused, InvalidMessages


class ChatTemplate:
    """A compiled template. ``special_tokens`` are visible in it by name, such as ``bos_token``.

    Raises ``ChatRefused`` for a template that is not valid.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatRefused(f"the template is not valid ({_one_line(error)})") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt that asks the model for the next turn. Raises ``InvalidMessages``, ``ChatRefused``."""
        checked = _checked(messages)
        try:
            return self._template.render(
                messages=checked,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except Exception as error:  # The template is a stranger's program: it may raise anything.
            raise ChatRefused(_one_line(error)) from error


class _Generation(Extension):
    """``{% generation %}``: marks the assistant's own words for training; here its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 (the attribute that the base class reads)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    # Not Jinja's own filter: that one escapes for HTML.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now(UTC).astimezone().strftime(form)


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidMessages("as a whole", "a list of at least one message", type(messages).__name__)
    checked = []
    for index, message in enumerate(messages):
        where = f"message {index}"
        if not isinstance(message, Mapping):
            raise InvalidMessages(where, "an object", type(message).__name__)
        if not isinstance(message.get("role"), str):
            raise InvalidMessages(f"{where}, role", "a string", type(message.get("role")).__name__)
        content = message.get("content")
        # A turn of tool calls may have no words of its own.
        if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise InvalidMessages(f"{where}, content", "a string", type(content).__name__)
        checked.append(dict(message))
    return checked


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
