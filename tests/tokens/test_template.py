"""Templates render as Hugging Face's environment renders them, in a sandbox with bounds."""

import time

import jinja2
import pytest
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gateway.tokens import template as module
from gateway.tokens.template import ChatTemplate, RenderError

USER = [{"role": "user", "content": "hi"}]


def render(source, messages=USER, tools=None, **arguments):
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, tools, arguments)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hi"),
        # Blocks take their line with them; loop controls work.
        (
            "{% for m in [1, 2, 3] %}\n  {% if m == 2 %}{% continue %}{% endif %}\n{{ m }}\n{% endfor %}",
            "1\n3\n",
        ),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hi!"),
        ("{{ add_generation_prompt }}{{ tools }}{{ documents }}{{ nothing }}", "TrueNoneNone"),
        ("{{ x | tojson }}", '{"a": "<é> \'&\'", "b": [1.0, null]}'),
        (
            "{{ x | tojson(indent=2) }}",
            '{\n  "a": "<é> \'&\'",\n  "b": [\n    1.0,\n    null\n  ]\n}',
        ),
        ("{{ strftime_now('%d') | length }}", "2"),
        ("{{ bos_token if y is undefined else y }}", "<s>"),
    ],
)
def test_renders_as_hugging_face(source, expected):
    assert render(source, x={"a": "<é> '&'", "b": [1.0, None]}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing.deeper }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_what_a_template_may_not_do_is_one_error(source):
    with pytest.raises(RenderError):
        render(source)


def test_the_shorter_way_through_the_sandbox_gives_jinja_s_own_answers():
    ours, jinja_s = module._environment(), ImmutableSandboxedEnvironment()
    loop = LoopContext([1], jinja2.Undefined)
    values = ["text", loop, Namespace(a=1), {"role": "user", "get": "key", "_x": 1, "none": None}]
    for value in values:
        for name in {*dir(value), "role", "get", "_x", "none", "absent", "format", "a"}:
            answers = [env.getattr(value, name) for env in (ours, jinja_s)]
            assert type(answers[0]) is type(answers[1]), name
            if isinstance(answers[0], jinja2.Undefined):
                texts = [(a._undefined_message, a._undefined_exception) for a in answers]
                assert texts[0] == texts[1]
            elif isinstance(answers[0], str | int | None):
                assert answers[0] == answers[1]


def test_an_error_does_not_repeat_the_client_s_text():
    with pytest.raises(RenderError) as caught:
        render(
            "{{ raise_exception(messages[0].content) }}", [{"role": "user", "content": "secret"}]
        )
    assert "secret" not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.timeout(20)
def test_rendering_is_bounded(monkeypatch):
    loop = "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}"
    monkeypatch.setattr(module, "RENDER_SECONDS", 0.05)
    begun = time.monotonic()
    with pytest.raises(RenderError, match="more than"):
        render(loop)
    assert time.monotonic() - begun < 5
    monkeypatch.setattr(module, "RENDER_CHARACTERS", 10)
    with pytest.raises(RenderError, match="more than"):
        render("{{ messages[0].content }}", [{"role": "user", "content": "x" * 11}])
    with pytest.raises(RenderError, match="messages"):
        render("x", USER * 10_001)


def test_a_template_in_the_data_stays_text():
    assert (
        render("{{ messages[0].content }}", [{"role": "user", "content": "{{ 7 * 7 }}"}])
        == "{{ 7 * 7 }}"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for part in message['content'] %}{% endfor %}", "openai"),
        ("{% for part in m.content | list %}{% endfor %}", "openai"),
        ("{% for part in msg.content[1:] %}{% endfor %}", "openai"),
        ("{{ '<|vision_start|>' }}", "openai"),
        ("{% for part in message.parts %}{{ message.content }}{% endfor %}", "string"),
        ("{% for part in other.content %}{% endfor %}", "string"),
        ("plain", "string"),
    ],
)
def test_content_format(source, expected):
    assert ChatTemplate(source, {}).content_format == expected


def test_what_the_engine_probes_templates_for():
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert plain.takes_inline_system
    assert plain.thinking_argument is None
    picky = ChatTemplate(
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if enable_thinking %}<think>{% endif %}",
        {},
    )
    assert not picky.takes_inline_system
    assert picky.thinking_argument == "enable_thinking"


def test_what_is_no_template_is_said_at_load():
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% if %}", {})
