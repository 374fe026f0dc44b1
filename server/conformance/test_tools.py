"""Calls of functions and responses, with unmodified clients: openai and langchain-openai."""

import openai
import pytest

import calling as checkpoint
from calling import ASKED, WEATHER, Weather
from conftest import KEY, Server


@pytest.fixture(scope="module")
def calling(tmp_path_factory):
    server = Server("--model", f"caller={checkpoint.write(tmp_path_factory.mktemp('calling'))}", "--api-key", KEY)
    yield server
    server.stop()


def client(server, strict=False):
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, _strict_response_validation=strict
    )


def test_a_required_call_is_whole_and_its_result_goes_back(calling):
    answer = client(calling, strict=True).chat.completions.create(
        model="caller", messages=ASKED, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, seed=1
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    Weather.model_validate_json(call.function.arguments)
    again = [*ASKED, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client(calling).chat.completions.create(
        model="caller", messages=again, tools=[WEATHER], tool_choice="none", max_completion_tokens=8
    )
    assert answer.choices[0].message.tool_calls is None


def test_a_stream_of_calls_is_accumulated_by_the_client(calling):
    with client(calling).chat.completions.stream(
        model="caller", messages=ASKED, tools=[openai.pydantic_function_tool(Weather)], tool_choice="required", seed=1
    ) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in events and "tool_calls.function.arguments.done" in events
    assert message.tool_calls and all(isinstance(call.function.parsed_arguments, Weather) for call in message.tool_calls)


def test_calls_and_texts_are_parsed_to_types(calling):
    answer = client(calling).chat.completions.parse(
        model="caller",
        messages=ASKED,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice={"type": "function", "function": {"name": "Weather"}},
    )
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)
    answer = client(calling).chat.completions.parse(model="caller", messages=ASKED, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_a_response_has_text_usage_and_status(calling):
    answer = client(calling, strict=True).responses.create(
        model="caller", input="Hello.", instructions="Be brief.", max_output_tokens=5, temperature=0, metadata={"a": "b"}
    )
    assert answer.status in ("completed", "incomplete") and isinstance(answer.output_text, str)
    assert answer.usage.input_tokens + answer.usage.output_tokens == answer.usage.total_tokens
    assert answer.metadata == {"a": "b"} and answer.store is False


def test_a_response_is_parsed_to_a_type(calling):
    answer = client(calling).responses.parse(model="caller", input="Rome?", text_format=Weather)
    assert isinstance(answer.output_parsed, Weather)


def test_a_streamed_response_is_the_response(calling):
    arguments = dict(model="caller", input="Rome?", text_format=Weather, temperature=0)
    whole = client(calling).responses.parse(**arguments)
    with client(calling).responses.stream(**arguments) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    assert events[:2] == ["response.created", "response.in_progress"] and events[-1] == "response.completed"
    assert final.output_text == whole.output_text and final.output_parsed == whole.output_parsed
    assert final.usage == whole.usage


def test_responses_call_functions_and_read_their_results(calling):
    tool = {"type": "function", "name": "Weather", "parameters": Weather.model_json_schema(), "strict": True}
    arguments = dict(model="caller", tools=[tool], tool_choice="required", parallel_tool_calls=False, temperature=0)
    whole = client(calling).responses.create(input="Rome?", **arguments)
    (call,) = whole.output
    Weather.model_validate_json(call.arguments)
    with client(calling).responses.stream(input="Rome?", **arguments) as stream:
        events = [event.type for event in stream]
        (streamed,) = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in events and streamed.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [{"role": "user", "content": "Rome?"}, *whole.output, result]
    answer = client(calling).responses.create(model="caller", input=items, max_output_tokens=4)
    assert answer.output[0].type == "message"
    with pytest.raises(openai.BadRequestError) as error:
        client(calling).responses.create(model="caller", input="x", previous_response_id=whole.id)
    assert error.value.param == "previous_response_id"


def test_a_number_is_an_extra_of_a_response(calling):
    answer = client(calling).responses.create(model="caller", input="1 + 1?", extra_body={"number": {"nodes_max": 32}})
    mass = answer.output[0].content[0].model_extra["number"]["mass"]
    assert abs(sum(mass.values()) - 1) < 1e-6


def test_langchain_binds_tools_and_reads_structured_outputs(calling):
    langchain_openai = pytest.importorskip("langchain_openai")
    for use_responses in (False, True):
        model = langchain_openai.ChatOpenAI(
            base_url=f"{calling.url}/v1", api_key=KEY, model="caller", use_responses_api=use_responses, max_retries=0
        )
        answer = model.bind_tools([Weather], tool_choice="any").invoke("Rome?")
        assert answer.tool_calls and all(Weather.model_validate(call["args"]) for call in answer.tool_calls)
        for method in ("function_calling", "json_schema"):
            assert isinstance(model.with_structured_output(Weather, method=method).invoke("Rome?"), Weather)
        chunks = list(model.bind_tools([Weather], tool_choice="any").stream("Rome?"))
        joined = chunks[0]
        for chunk in chunks[1:]:
            joined += chunk
        assert joined.tool_calls and Weather.model_validate(joined.tool_calls[0]["args"])
