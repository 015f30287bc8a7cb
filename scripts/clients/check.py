"""The official clients against a server: check.py URL KEY MODEL. Exits with 1 at the first surprise."""

import asyncio
import json
import re
import struct
import sys
import time
import urllib.request

from typing import Literal

import anthropic
import jsonschema
import ollama
import openai
import pydantic

URL, KEY, MODEL = sys.argv[1:]
ASK = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
LONG = [{"role": "user", "content": "Write a long story about a bird."}]


def raises(kind, call, *shown):
    try:
        call()
    except kind as error:
        for text in shown:
            assert text in str(error), f"{text!r} is not in {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def metric(name):
    text = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
    return float(lines[0].rsplit(" ", 1)[1])


def becomes_idle():
    """What a client gave up is not worked on any more."""
    end = time.time() + 30
    while metric("vllm:num_requests_running") or metric("dunlin:requests_in_flight"):
        assert time.time() < end, "requests are still under way"
        time.sleep(0.05)


def check_openai():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    settings = dict(model=MODEL, messages=ASK, temperature=0, max_tokens=24)
    whole = client.chat.completions.create(**settings)
    text = whole.choices[0].message.content
    assert "Paris" in text, text
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    stream = client.chat.completions.create(
        **settings, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    parts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(parts) == text and len(parts) > 3
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0

    several = client.chat.completions.create(
        **{**settings, "temperature": 1, "max_tokens": 4}, n=3, seed=5, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    for choice in several.choices:
        assert len(choice.logprobs.content) <= 4
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
        assert "".join(t.token for t in choice.logprobs.content).startswith(choice.message.content)
    again = client.chat.completions.create(
        **{**settings, "temperature": 1, "max_tokens": 4}, n=3, seed=5
    )
    said = [[c.message.content for c in answer.choices] for answer in (several, again)]
    assert said[0] == said[1], said

    stopped = client.chat.completions.create(**settings, stop=["Paris"])
    assert stopped.choices[0].message.content == text.split("Paris")[0]
    assert stopped.choices[0].finish_reason == "stop"

    plain = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=5, echo=True
    )
    assert plain.choices[0].text.startswith("The capital of France is"), plain
    parts = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=5, stream=True
    )
    joined = "".join(c.choices[0].text for c in parts if c.choices)
    assert plain.choices[0].text == "The capital of France is" + joined
    extra = client.completions.create(
        model=MODEL, prompt="a", max_tokens=6, extra_body={"ignore_eos": True, "top_k": 1, "min_p": 0.1}
    )
    assert extra.usage.completion_tokens == 6

    response = client.responses.create(model=MODEL, input=ASK, temperature=0, max_output_tokens=24)
    assert response.output_text == text, response
    events = list(client.responses.create(
        model=MODEL, input=ASK, temperature=0, max_output_tokens=24, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text
    assert events[-1].response.usage.output_tokens == response.usage.output_tokens

    create = client.chat.completions.create
    error = raises(openai.BadRequestError, lambda: create(model=MODEL, messages=ASK, temperature=-1), "temperature")
    assert error.param == "temperature"
    error = raises(openai.NotFoundError, lambda: create(model="other", messages=ASK), "model")
    assert error.code == "model_not_found"
    raises(openai.BadRequestError, lambda: create(model=MODEL, messages=[{"role": "user", "content": "a " * 3000}]), "context")
    bad = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "strang"}}}
    error = raises(openai.BadRequestError, lambda: create(model=MODEL, messages=ASK, response_format=bad), "cannot be used")
    assert error.param == "response_format.json_schema.schema"

    # The client asks for base64 and makes floats of it.
    vectors = [d.embedding for d in client.embeddings.create(model=MODEL, input=["A cat.", "A dog."]).data]
    again = client.embeddings.create(model=MODEL, input="A dog.", encoding_format="float").data[0].embedding
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-5 for vector in vectors)
    # The same 32-bit floats: a decimal of few digits is not the float itself.
    bits = lambda vector: struct.pack(f"{len(vector)}f", *vector)
    assert bits(again) == bits(vectors[1])
    stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, stranger.models.list, "API key")

    with create(model=MODEL, messages=LONG, stream=True) as stream:
        for _, _ in zip(range(5), stream):
            pass
    becomes_idle()
    hasty = client.with_options(timeout=0.2)
    raises(openai.APITimeoutError, lambda: hasty.chat.completions.create(
        model=MODEL, messages=LONG, extra_body={"ignore_eos": True}))
    becomes_idle()


async def check_openai_at_once():
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
    settings = dict(model=MODEL, messages=ASK, temperature=0, max_tokens=12)

    async def streamed():
        stream = await client.chat.completions.create(**settings, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    texts = await asyncio.gather(*[streamed() for _ in range(6)])
    assert len(set(texts)) == 1, texts


def check_anthropic():
    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    settings = dict(model=MODEL, max_tokens=24, messages=ASK, extra_body={"temperature": 0})
    whole = client.messages.create(**settings)
    text = whole.content[0].text
    assert "Paris" in text and whole.role == "assistant", whole
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**settings) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert final.content[0].text == text and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    count = client.messages.count_tokens(model=MODEL, messages=ASK)
    usage = whole.usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    stopped = client.messages.create(**settings, stop_sequences=["Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    system = client.messages.create(**settings, system="You are a pirate.")
    assert system.usage.input_tokens + system.usage.cache_read_input_tokens > count.input_tokens - 20
    begun = client.messages.create(
        **{**settings, "messages": ASK + [{"role": "assistant", "content": "The capital of France is"}]}
    )
    assert "Paris" in begun.content[0].text, begun
    raises(anthropic.BadRequestError, lambda: client.messages.create(**{**settings, "max_tokens": 0}), "max_tokens")
    raises(anthropic.NotFoundError, lambda: client.messages.create(**{**settings, "model": "x"}), "model")
    stranger = anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0)
    raises(anthropic.AuthenticationError, lambda: stranger.messages.create(**settings))
    with client.messages.stream(**{**settings, "max_tokens": 900, "messages": LONG}) as stream:
        for _, _ in zip(range(3), stream.text_stream):
            pass
    becomes_idle()


def check_ollama():
    client = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})
    assert [model.model for model in client.list().models] == [MODEL]
    assert client.ps().models[0].model == MODEL
    shown = client.show(MODEL)
    assert shown.details.family in ("llama", "qwen2") and "completion" in shown.capabilities
    options = {"temperature": 0, "num_predict": 24, "repeat_penalty": 1}
    whole = client.chat(model=MODEL, messages=ASK, options=options)
    assert "Paris" in whole.message.content and whole.done
    assert whole.eval_count > 0 and whole.prompt_eval_count > 0
    parts = list(client.chat(model=MODEL, messages=ASK, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].done_reason in ("stop", "length")
    prompt = "The capital of France is"
    said = client.generate(model=MODEL, prompt=prompt, raw=True, options=options).response
    assert "Paris" in said, said
    parts = client.generate(model=MODEL, prompt=prompt, raw=True, options=options, stream=True)
    assert "".join(part.response for part in parts) == said
    error = raises(ollama.ResponseError, lambda: client.chat(model="other", messages=ASK), "model")
    assert error.status_code == 404
    stream = client.chat(model=MODEL, messages=LONG, stream=True)
    next(stream)
    stream.close()
    becomes_idle()


class Person(pydantic.BaseModel):
    """The form that answers must have."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=24)
    age: int = pydantic.Field(ge=0, le=150)
    tags: list[Literal["tall", "kind", "old"]] = pydantic.Field(min_length=1, max_length=3)


def check_forms():
    """Whatever the model would say, what comes is of the form."""
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    ask = [{"role": "user", "content": "Describe a person that you make up."}]
    schema = Person.model_json_schema()
    for seed in range(3):
        settings = dict(model=MODEL, messages=ask, temperature=1.3, seed=seed, max_tokens=300)
        parsed = client.chat.completions.parse(**settings, response_format=Person)
        assert isinstance(parsed.choices[0].message.parsed, Person), parsed
        wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        several = client.chat.completions.create(**settings, n=3, response_format=wanted)
        for choice in several.choices:
            jsonschema.validate(json.loads(choice.message.content), schema)
            assert choice.finish_reason == "stop"
        parts = client.chat.completions.create(**settings, response_format=wanted, stream=True)
        text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
        assert text == several.choices[0].message.content, "streamed, it is the same"
        extra = {"structured_outputs": {"regex": r"\d{3}-\d{4}"}}
        number = client.chat.completions.create(**settings, extra_body=extra).choices[0].message.content
        assert re.fullmatch(r"\d{3}-\d{4}", number), number
    response = client.responses.parse(model=MODEL, input=ask, max_output_tokens=300, text_format=Person)
    assert isinstance(response.output_parsed, Person), response
    any_object = client.chat.completions.create(
        model=MODEL, messages=ask, max_tokens=400, temperature=0, response_format={"type": "json_object"})
    if any_object.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(any_object.choices[0].message.content), dict)
    local = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})
    said = local.chat(model=MODEL, messages=ask, format=schema, options={"num_predict": 300})
    Person.model_validate_json(said.message.content)
    said = local.generate(model=MODEL, prompt="A person.", format=schema, options={"num_predict": 300})
    Person.model_validate_json(said.response)


def check_tools():
    """Calls of tools, where the model's template knows them."""
    local = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})
    if "tools" not in local.show(MODEL).capabilities:
        return "no tools in the model's template"
    parameters = {
        "type": "object", "required": ["city", "days"], "additionalProperties": False,
        "properties": {"city": {"type": "string", "maxLength": 30},
                       "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    }
    weather = {"name": "weather", "description": "The weather of the next days", "parameters": parameters}
    other = {"name": "remember", "parameters": {
        "type": "object", "required": ["fact"], "additionalProperties": False,
        "properties": {"fact": {"type": "string", "maxLength": 60}}}}
    tools = [{"type": "function", "function": function} for function in (weather, other)]
    schemas = {function["name"]: function["parameters"] for function in (weather, other)}
    ask = [{"role": "user", "content": "How will the weather be in Oslo in the next 3 days?"}]
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    named = {"type": "function", "function": {"name": "weather"}}
    for seed in range(3):
        settings = dict(model=MODEL, messages=ask, tools=tools, temperature=1, seed=seed, max_tokens=700)
        for choice in ("required", named):
            answer = client.chat.completions.create(**settings, tool_choice=choice).choices[0]
            calls = answer.message.tool_calls
            assert calls and answer.finish_reason == "tool_calls", answer
            assert choice == "required" or [c.function.name for c in calls] == ["weather"], calls
            for call in calls:
                jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
        parts = client.chat.completions.create(**settings, tool_choice=named, stream=True)
        deltas = [c.choices[0].delta.tool_calls for c in parts if c.choices and c.choices[0].delta.tool_calls]
        jsonschema.validate(json.loads(deltas[0][0].function.arguments), parameters)
    # Of its own will the model may call or speak; what it calls with is JSON.
    free = client.chat.completions.create(**{**settings, "temperature": 0}).choices[0].message
    for call in free.tool_calls or []:
        json.loads(call.function.arguments)
    # The result of a call is told, and the conversation goes on.
    call = client.chat.completions.create(**{**settings, "temperature": 0}, tool_choice=named).choices[0].message
    told = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny, 21 degrees"}
    answer = client.chat.completions.create(
        model=MODEL, messages=ask + [call, told], tools=tools, tool_choice="none", temperature=0, max_tokens=60)
    assert answer.choices[0].message.content, answer
    flat = [{"type": "function", **function} for function in (weather, other)]
    response = client.responses.create(
        model=MODEL, input=ask, tools=flat, tool_choice={"type": "function", "name": "weather"})
    made = [item for item in response.output if item.type == "function_call"]
    jsonschema.validate(json.loads(made[0].arguments), parameters)
    claude = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    described = [{"name": f["name"], "input_schema": f["parameters"]} for f in (weather, other)]
    for choice in ({"type": "tool", "name": "weather"}, {"type": "any"}):
        answer = claude.messages.create(
            model=MODEL, max_tokens=700, messages=ask, tools=described, tool_choice=choice)
        uses = [block for block in answer.content if block.type == "tool_use"]
        assert uses and answer.stop_reason == "tool_use", answer
        for use in uses:
            jsonschema.validate(use.input, schemas[use.name])
    return "tools"


check_openai()
asyncio.run(check_openai_at_once())
check_anthropic()
check_ollama()
check_forms()
tools = check_tools()
print(f"openai {openai.__version__}, anthropic {anthropic.__version__}, ollama: all as expected ({tools})")
