"""Prompts and conversations, against transformers where it can be asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tokenizers import processors

from txdecode.runtime.text import Text
from txdecode.runtime.text_errors import (
    ChatRefused,
    ChatTemplateMissing,
    InvalidMessages,
    InvalidText,
    TextError,
)
from txdecode.state.errors import TxDecodeError

MakeText = Callable[..., Text]

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1. a\n\n2. b  3"}],
    [
        {"role": "user", "content": "naïve 😀\n<|im_end|> {{ x }} {% y %} \\n \"'"},
        {"role": "assistant", "content": "  spaces  "},
        {"role": "user", "content": ""},
    ],
]

TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}\n{% endfor %}",
    """{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = message.content %}
        {%- continue %}
    {%- endif %}
    {{- '<' + message.role + '>' }}
    {%- generation %}{{ message.content }}{% endgeneration %}
    {%- if loop.last and add_generation_prompt %}{{ '<assistant>' }}{%- break %}{% endif %}
{%- endfor %}
{{ ns.system }}""",
    """{% macro show(m) %}{{ m | tojson }}{% endmacro %}
{% for m in messages if m.content %}
    {{ show(m) }}
    {% endfor %}
{{ {"z": "é<&'", "a": [1, none, true]} | tojson(indent=2) }} {{ tools is none }} {{ documents is none }}""",
    "{% if tools %}no{% else %}{{ messages[-1]['content'].split('a')[0] | upper }}{% endif %}{{ undefined_name }}",
    "{% set x = 'a' %}{% generation %}{% set x = 'b' %}{{ x }}{% endgeneration %}{{ x }}",
    "{{ strftime_now('%Y') }}{{ messages | length }}{{ messages[0].items() | list | length }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_templates_render_as_in_transformers(
    make_text: MakeText, template: str, messages: list[dict[str, Any]]
) -> None:
    from transformers import PreTrainedTokenizerFast

    ours = make_text(template, {"bos_token": "<|user|>"})
    theirs = PreTrainedTokenizerFast(tokenizer_object=ours.assets.tokenizer, bos_token="<|user|>")
    expected = theirs.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert ours.render_chat(messages) == expected
    ids = theirs.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, return_dict=False
    )
    assert ours.encode_chat(messages) == ids


@pytest.mark.model
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_smollm2_conversations_equal_those_of_transformers(
    smollm2: Text, smollm2_theirs: Any, messages: list[dict[str, Any]]
) -> None:
    assert smollm2.has_chat
    assert smollm2.render_chat(messages) == smollm2_theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    ids = smollm2_theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert smollm2.encode_chat(messages) == ids


@pytest.mark.model
def test_smollm2_prompt(smollm2: Text) -> None:
    ids = smollm2.encode_chat([{"role": "user", "content": "Hi"}])
    assert ids[0] == 1
    assert smollm2.decode(ids).endswith("user\nHi\nassistant\n")
    assert smollm2.eos_ids == (2,)


def test_a_plain_prompt_gets_what_the_model_wants_before_it_and_a_chat_does_not(make_text: MakeText) -> None:
    text = make_text("{{ messages[0].content }}")
    text.assets.tokenizer.post_processor = processors.TemplateProcessing(
        single=["<|user|>", "$A"], special_tokens=[("<|user|>", 1)]
    )
    plain = text.encode("ab")
    assert plain[0] == 1
    assert text.encode_chat([{"role": "user", "content": "ab"}]) == plain[1:]


def test_a_model_without_a_template_refuses_messages(make_text: MakeText) -> None:
    text = make_text()
    assert not text.has_chat
    with pytest.raises(ChatTemplateMissing, match="plain text"):
        text.encode_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hello",
        {"role": "user", "content": "x"},
        None,
        ["Hello"],
        [{"content": "x"}],
        [{"role": 1, "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": 5}],
    ],
)
def test_malformed_messages_are_refused_before_the_template_sees_them(
    make_text: MakeText, messages: Any
) -> None:
    with pytest.raises(InvalidMessages, match="expected") as caught:
        make_text("{{ messages }}").encode_chat(messages)
    assert "\n" not in str(caught.value)


def test_a_turn_of_tool_calls_needs_no_words(make_text: MakeText) -> None:
    text = make_text("{{ messages[0].tool_calls[0].name }}")
    message = {"role": "assistant", "content": None, "tool_calls": [{"name": "clock"}]}
    assert text.render_chat([message]) == "clock"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 5 }}", "str"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ 1 // 0 }}", "zero"),
    ],
)
def test_a_template_that_fails_refuses_the_messages(make_text: MakeText, template: str, words: str) -> None:
    with pytest.raises(ChatRefused, match=words) as caught:
        make_text(template).encode_chat([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


def test_a_template_cannot_change_the_messages(make_text: MakeText) -> None:
    message = {"role": "user", "content": "x"}
    with pytest.raises(ChatRefused):
        make_text("{% set _ = messages[0].update({'content': 'y'}) %}").render_chat([message])
    assert message == {"role": "user", "content": "x"}


@pytest.mark.parametrize("template", ["{% for %}", "{% generation %}", "{{ x"])
def test_an_invalid_template_is_refused_when_the_text_is_made(make_text: MakeText, template: str) -> None:
    with pytest.raises(ChatRefused, match="not valid"):
        make_text(template)


def test_the_date_is_today(make_text: MakeText) -> None:
    text = make_text("{{ strftime_now('%d %b %Y') }}")
    before = datetime.now(UTC).astimezone().strftime("%d %b %Y")
    shown = text.render_chat([{"role": "user", "content": "x"}])
    assert shown in (before, datetime.now(UTC).astimezone().strftime("%d %b %Y"))


@pytest.mark.parametrize("bad", ["\ud800", "ab\udfffcd"])
def test_half_a_surrogate_pair_is_refused(make_text: MakeText, bad: str) -> None:
    text = make_text("{{ messages[0].content }}")
    with pytest.raises(InvalidText) as caught:
        text.encode(bad)
    assert caught.value.position == bad.index(bad.strip("abcd"))
    with pytest.raises(InvalidText):
        text.encode_chat([{"role": "user", "content": bad}])


def test_every_error_is_an_operating_error() -> None:
    for error in (ChatRefused, ChatTemplateMissing, InvalidMessages, InvalidText):
        assert issubclass(error, TextError)
    assert issubclass(TextError, TxDecodeError)
