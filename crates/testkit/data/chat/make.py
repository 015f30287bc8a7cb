#!/usr/bin/env python3
"""Writes cases.json: what Python's jinja2, set up as transformers sets it up, makes of the
templates here and of those in model files.

Needs jinja2 and, for the templates of model files, gguf:
    make.py [MODEL.gguf ...]
"""

import copy
import json
import pathlib
import sys
from datetime import datetime, timezone

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime(2026, 3, 5, 21, 7, 9, tzinfo=timezone.utc)


class Generation(Extension):
    """`{% generation %}` prints its block, as it does outside training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("shown")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def shown(caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a place, \"now\" <or> later & so on.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Zürich, 東京, ..."},
                "days": {"type": "integer", "minimum": 1, "default": None},
                "exact": {"type": "boolean", "default": True},
            },
            "required": ["place"],
        },
        "return": {"type": "string"},
    },
}

PLAIN = [{"role": "user", "content": "  Hello there!\n"}]
TALK = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": " 4\n"},
    {"role": "user", "content": "And <b>3</b> & 'so' \"on\"? 日本"},
]
CALLS = [
    {"role": "user", "content": "Weather in Zürich?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "abcdefghi",
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "arguments": {"place": "Zürich", "days": 2, "x": 1.5, "list": [1, "a", None]},
                },
            }
        ],
    },
    {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "21 °C"},
    {"role": "assistant", "content": "It is 21 °C."},
    {"role": "user", "content": "Thanks"},
]
PARTS = [
    {
        "role": "user",
        "content": [
            {"type": "image"},
            {"type": "text", "text": " What is this? "},
            {"type": "text", "text": "Be brief."},
        ],
    }
]
TWO_USERS = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
THOUGHTS = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nanswer 1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "<think>\nlonger\nthought\n</think>\n\nanswer 2"},
]
DATA = [
    {
        "data": {
            "b": 1,
            "a": [True, False, None, 0, -7, 18446744073709551615, 1.0, 0.1, 1e16, 1e-5, 1.5e300, -0.0],
            "text": "quote \" slash / back \\ tab \t nl \n bell \u0007 del \u007f <&>' é 日 👍 \u2028",
            "empty": {"list": [], "map": {}},
            "nested": [[1, [2, {"k": "v"}]], []],
        }
    },
    {"data": "plain"},
    {"data": [1]},
    {"data": 2.5},
    {"data": None},
]
WORDS = [
    {"role": "user", "content": " hello wOrld all "},
    {"role": "assistant", "content": "été ΑΒΓ ö", "name": "n"},
    {"role": "user", "content": "one"},
]


def case(template, messages, generation=True, tools=None, **variables):
    return {
        "template": template,
        "messages": messages,
        "tools": tools or [],
        "add_generation_prompt": generation,
        "variables": variables,
    }


CASES = [
    case("llama3", PLAIN),
    case("llama3", TALK),
    case("llama3", TALK, generation=False),
    case("llama3", TALK, tools=[WEATHER]),
    case("llama3", CALLS, tools=[WEATHER, WEATHER]),
    case("mistral", PLAIN),
    case("mistral", TALK),
    case("mistral", CALLS, tools=[WEATHER]),
    case("mistral", TWO_USERS),
    case("mistral", [{"role": "critic", "content": "x"}]),
    case("gemma", PLAIN),
    case("gemma", TALK),
    case("gemma", TALK, generation=False),
    case("gemma", PARTS),
    case("gemma", TWO_USERS),
    case("gemma", [{"role": "user", "content": 5}]),
    case("phi3", PLAIN),
    case("phi3", TALK),
    case("phi3", TALK, generation=False),
    case("chatml_thinking", PLAIN),
    case("chatml_thinking", PLAIN, enable_thinking=False),
    case("chatml_thinking", THOUGHTS, generation=False),
    case("chatml_thinking", THOUGHTS + PLAIN, enable_thinking=True),
    case("whitespace", PLAIN),
    case("json", DATA),
    case("filters", WORDS),
]

FROM_FILES = [
    (PLAIN, True, None),
    (TALK, True, None),
    (TALK, False, None),
    (CALLS, True, [WEATHER]),
    (TALK, True, [WEATHER]),
]


def render(env, source, entry):
    try:
        return {
            "expected": env.from_string(source).render(
                messages=copy.deepcopy(entry["messages"]),
                tools=copy.deepcopy(entry["tools"]) or None,
                documents=None,
                add_generation_prompt=entry["add_generation_prompt"],
                bos_token="<s>",
                eos_token="</s>",
                **entry["variables"],
            )
        }
    except jinja2.exceptions.UndefinedError as error:
        return {"undefined": str(error)}
    except TypeError as error:
        return {"type_error": str(error)}
    except jinja2.exceptions.TemplateError as error:
        return {"raised": str(error)}


def main():
    env = environment()
    out = []
    for entry in CASES:
        source = (HERE / "templates" / (entry["template"] + ".jinja")).read_text()
        out.append(entry | render(env, source, entry))
    for path in sys.argv[1:]:
        from gguf import GGUFReader

        field = GGUFReader(path).fields.get("tokenizer.chat_template")
        if field is None:
            continue
        for messages, generation, tools in FROM_FILES:
            entry = case("", messages, generation, tools)
            del entry["template"]
            entry["file"] = pathlib.Path(path).name
            out.append(entry | render(env, field.contents(), entry))
    text = json.dumps(out, ensure_ascii=False, indent=1)
    (HERE / "cases.json").write_text(text + "\n")


main()
