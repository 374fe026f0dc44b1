"""Unmodified clients that call functions and read structured answers: litellm, instructor, pydantic-ai and inspect_ai.

Each runs in the environment that has it: the first three need another version of openai than the evaluation tools."""

import asyncio
from typing import Literal

import pytest

import calling
from calling import ASKED, WEATHER, Weather
from served import Server

KEY = "a-key"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    server = Server("--model", f"caller={calling.write(tmp_path_factory.mktemp('calling'))}", "--api-key", KEY)
    yield f"{server.url}/v1"
    server.stop()


@pytest.fixture
def litellm(monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    module = pytest.importorskip("litellm", reason="litellm is not in this environment")
    module.telemetry = False
    return module


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_writes_streams_and_calls_functions(litellm, url, provider):
    options = {"model": f"{provider}/caller", "api_base": url, "api_key": KEY, "messages": ASKED}
    whole = litellm.completion(**options, max_tokens=8, temperature=0)
    chunks = list(litellm.completion(**options, max_tokens=8, temperature=0, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert asyncio.run(litellm.acompletion(**options, max_tokens=2)).usage.completion_tokens > 0
    called = litellm.completion(**options, tools=[WEATHER], tool_choice="required")
    assert called.choices[0].finish_reason == "tool_calls"
    # For `hosted_vllm`, litellm removes `additionalProperties` from the schemas of functions.
    extra = "forbid" if provider == "openai" else "ignore"
    arguments = [call.function.arguments for call in called.choices[0].message.tool_calls]
    assert all(Weather.model_validate_json(text, extra=extra) for text in arguments)
    structured = litellm.completion(**options, response_format=Weather)
    Weather.model_validate_json(structured.choices[0].message.content)


def test_litellm_reads_responses(litellm, url):
    answer = litellm.responses(model="openai/caller", api_base=url, api_key=KEY, input="Rome?", max_output_tokens=4)
    assert answer.output[0].type == "message" and answer.usage.output_tokens > 0


@pytest.fixture
def instructor():
    return pytest.importorskip("instructor", reason="instructor is not in this environment")


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_instructor_reads_answers_as_types(instructor, url, mode):
    import openai

    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key=KEY), mode=instructor.Mode[mode])
    assert isinstance(client.chat.completions.create(model="caller", response_model=Weather, messages=ASKED), Weather)
    if mode == "TOOLS":
        parts = list(client.chat.completions.create_partial(model="caller", response_model=Weather, messages=ASKED))
        Weather.model_validate(parts[-1].model_dump())


@pytest.fixture
def pydantic_ai():
    return pytest.importorskip("pydantic_ai", reason="pydantic-ai is not in this environment")


@pytest.mark.parametrize("api", ["OpenAIChatModel", "OpenAIResponsesModel"])
def test_pydantic_ai_reads_answers_as_types(pydantic_ai, url, api):
    from pydantic_ai.models import openai
    from pydantic_ai.providers.openai import OpenAIProvider

    model = getattr(openai, api)("caller", provider=OpenAIProvider(base_url=url, api_key=KEY))
    for output in (pydantic_ai.ToolOutput(Weather), pydantic_ai.NativeOutput(Weather)):
        agent = pydantic_ai.Agent(model, output_type=output)
        assert isinstance(agent.run_sync("Rome?").output, Weather)

        async def streamed(agent=agent):
            async with agent.run_stream("Rome?") as stream:
                return await stream.get_output()

        assert isinstance(asyncio.run(streamed()), Weather)


@pytest.mark.parametrize("provider", ["openai", "openai-api/ntl"])
def test_inspect_ai_calls_tools_and_returns_their_results(url, provider):
    pytest.importorskip("inspect_ai", reason="inspect_ai is not in this environment")
    from inspect_ai.model import ChatMessageUser, GenerateConfig, execute_tools, get_model
    from inspect_ai.tool import tool

    @tool
    def weather():
        async def execute(city: Literal["Rome", "Oslo"]):
            """The weather in a city.

            Args:
                city: Name of the city.
            """
            return f"sunny in {city}"

        return execute

    async def conversation():
        model = get_model(f"{provider}/caller", base_url=url, api_key=KEY, memoize=False)
        messages, tools = [ChatMessageUser(content="Rome?")], [weather()]
        called = await model.generate(messages, tools, "any", GenerateConfig(parallel_tool_calls=False))
        messages.append(called.message)
        results = (await execute_tools(messages, tools)).messages
        answer = await model.generate([*messages, *results], tools, "none", GenerateConfig(max_tokens=4))
        return called, results, answer

    called, results, answer = asyncio.run(conversation())
    assert [call.function for call in called.message.tool_calls] == ["weather"] and called.stop_reason == "tool_calls"
    assert results[0].text.startswith("sunny in ") and not results[0].error
    assert not answer.message.tool_calls
