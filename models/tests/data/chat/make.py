"""Writes `conversations.json`: templates of our own, conversations, and what Hugging Face makes of them.

Written with transformers 4.57.1 and Jinja 3: `python make.py`.
"""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models

TEMPLATES = {
    "turns": """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' %}
<<{{ message['content'] | trim }}>>
{% elif message.role == 'user' -%}
    [U] {{ message.content.strip() }} [/U]
{%- else %}
    {{ ' ' + message['content'] + eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
[A]
{%- endif %}
""",
    "namespace": """{%- set ns = namespace(system='', count=0) -%}
{%- if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}
{%- for m in messages %}{%- set ns.count = ns.count + 1 %}
    {%- if loop.first %}{{ '#' ~ ns.system ~ '#' }}{% endif %}
    {{- '<|' + m['role'].upper() + '|>' + m['content'].split('</think>')[-1].lstrip('\\n') }}
    {%- if not loop.last %}{{ '\\n' }}{% endif %}
{%- endfor %}
{{- '|' ~ ns.count ~ '|' }}
{%- if add_generation_prompt and (enable_thinking is not defined or enable_thinking) %}{{- '<think>' }}{%- endif %}""",
    "json": """{% for message in messages %}{{ message | tojson }}
{% endfor %}{{ {"a": [1, 2.5, none, true], "b": "<é'&>"} | tojson }}
{{ [] | tojson(indent=2) }}{{ {"k": ["x", {"y": 1}]} | tojson(indent=4) }}""",
    "control": """{% for message in messages %}{% if message.role == 'tool' %}{% continue %}{% endif %}
{% if loop.index0 > 3 %}{% break %}{% endif %}
{{ loop.index }}{{ message.role.title() }}:{{ message['content'].replace('x', 'y')[:12] }};{% endfor %}
{%- if tools is none and not documents %} none{% endif %}
{%- for part in ['b', 'a'] | sort %}{{ part }}{% endfor %}
{%- if messages[-1].content.startswith('What') and 'x' in messages[-1]['content'] %} asks{% endif %}""",
    "macro": """{%- macro turn(role, text='none') -%}<{{ role }}>{{ text }}</{{ role }}>{%- endmacro -%}
{%- for message in messages -%}{{ turn(message.role, text=message.content | replace('\\n', ' ')) }}{%- endfor -%}
{{- "%s-%d" | format("n", messages | length) }}{{ pad_token | default('nopad') }}""",
    "strict": """{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant') }}
{%- endif %}{{ message.role[0] }}{% endfor %}""",
}

# Templates that write tools, with calls as objects or as JSON, and content that may be null.
TOOL_TEMPLATES = {
    "calls": """{%- if tools %}{{- '<tools>\\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{- '</tools>\\n' }}{% endif %}
{%- for m in messages %}{{- '<|' + m.role + '|>' }}
{%- if m.content is not none %}{{ m.content }}{% endif %}
{%- if m.tool_calls is defined and m.tool_calls %}
{%- for call in m.tool_calls %}
<call id={{ call.id }}>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</call>
{%- endfor %}{% endif %}
{%- if m.tool_call_id is defined %} ({{ m.tool_call_id }}){% endif %}
{% endfor %}""",
    "indented": """{% for tool in tools or [] %}{{ tool.function | tojson(indent=4) }}
{% endfor %}{% for m in messages %}{% if 'tool_calls' in m %}{% set out = m.tool_calls[0].function | tojson %}
{{- out[:-1] + ', "id": "' + m.tool_calls[0].id + '"}' }}{% else %}[{{ m.role }}] {{ m.content }}{% endif %}
{% endfor %}{% if tools is not none and tools | length > 1 %}many{% endif %}""",
}

TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather, e.g. <sun> & 'é'.", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 7}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "now"}},
]

TOOL_CONVERSATIONS = {
    "question": [{"role": "user", "content": "Rome?"}],
    "result": [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"type": "function", "id": "call_1", "function": {"name": "weather", "arguments": {"city": "Rome", "days": 2}}}]},
        {"role": "tool", "content": "sunny, 21°", "tool_call_id": "call_1"},
    ],
    "text and calls": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [
            {"type": "function", "id": "a", "function": {"name": "now", "arguments": {}}},
            {"type": "function", "id": "b", "function": {"name": "weather", "arguments": {"city": "Ålesund"}}}]},
    ],
}

CONVERSATIONS = {
    "one": [{"role": "user", "content": "  What is 3 x 4?\n"}],
    "system": [
        {"role": "system", "content": " Be <brief> & 'exact'. "},
        {"role": "user", "content": "5 + 5?"},
        {"role": "assistant", "content": "hmm</think>\n\n10"},
        {"role": "user", "content": "What about x = ½?\nYes."},
    ],
    "pair": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"},
             {"role": "user", "content": ""}],
}


def render(tokenizer, template, messages, **options):
    try:
        return {"text": tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)}
    except Exception as error:  # what the template raises
        return {"raises": str(error)}


tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1})), bos_token="<s>", eos_token="</s>")
cases = []
for name, template in TEMPLATES.items():
    for about, messages in CONVERSATIONS.items():
        for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False},
                        {"add_generation_prompt": True, "enable_thinking": False}):
            cases.append({"template": name, "about": about, "messages": messages, "options": options,
                          **render(tokenizer, template, messages, **options)})
for name, template in TOOL_TEMPLATES.items():
    for about, messages in TOOL_CONVERSATIONS.items():
        for tools in ([], TOOLS[:1], TOOLS):
            options = {"add_generation_prompt": True}
            cases.append({"template": name, "about": about, "messages": messages, "tools": tools, "options": options,
                          **render(tokenizer, template, messages, tools=tools or None, **options)})
out = {"templates": TEMPLATES | TOOL_TEMPLATES, "cases": cases}
Path(__file__).with_name("conversations.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
