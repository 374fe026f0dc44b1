"""The unmodified OpenAI client with strict validation of the responses.

Streams are read without strict validation: the client's type of a chunk does not allow `finish_reason: null`, which
OpenAI's own servers send in every chunk but the last.
"""

import openai
import pytest

from conftest import KEY

MODEL = "t5-ntl-was"
PROMPT = "What is 336 - -20?"


def client(server, strict=True, key=KEY):
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=key, max_retries=0, _strict_response_validation=strict
    )


def test_models_are_listed_and_found(server):
    models = list(client(server).models.list())
    assert [model.id for model in models] == [MODEL]
    assert client(server).models.retrieve(MODEL).owned_by == "ntl-server"
    with pytest.raises(openai.NotFoundError) as error:
        client(server).models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_a_completion_has_text_usage_and_a_request_id(server):
    answer = client(server).completions.create(model=MODEL, prompt=PROMPT, temperature=0)
    assert answer.choices[0].text == "356"
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens
    assert answer._request_id


def test_lists_of_prompts_and_several_texts_are_indexed(server):
    prompts = [PROMPT, "Add 3 and 4.", "What is 12 + 7?"]
    answer = client(server).completions.create(model=MODEL, prompt=prompts, n=2, seed=7, max_tokens=4)
    assert [choice.index for choice in answer.choices] == list(range(6))
    again = client(server).completions.create(model=MODEL, prompt=prompts, n=2, seed=7, max_tokens=4)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in again.choices]


def test_prompts_may_be_token_ids(server):
    ids = client(server).post("/../tokenize", body={"prompt": PROMPT}, cast_to=object)["tokens"]
    for prompt in (ids, [ids, ids]):
        answer = client(server).completions.create(model=MODEL, prompt=prompt, temperature=0)
        assert {choice.text for choice in answer.choices} == {"356"}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_log_probabilities_run_in_parallel_and_change_no_text(server, count):
    answer = client(server).completions.create(model=MODEL, prompt=PROMPT, temperature=0, logprobs=count)
    logprobs = answer.choices[0].logprobs
    lengths = {len(logprobs.tokens), len(logprobs.token_logprobs), len(logprobs.text_offset)}
    assert answer.choices[0].text == "356" and len(lengths) == 1
    assert all(value <= 0 for value in logprobs.token_logprobs)
    for top in logprobs.top_logprobs or []:
        assert len(top) <= count + 1


def test_a_stream_is_the_answer_in_pieces(server):
    arguments = dict(model=MODEL, prompt=PROMPT, seed=3, max_tokens=8)
    whole = client(server).completions.create(**arguments)
    stream = client(server, strict=False).completions.create(
        **arguments, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    *text, usage = chunks
    assert "".join(chunk.choices[0].text for chunk in text) == whole.choices[0].text
    finished = [chunk.choices[0].finish_reason for chunk in text]
    assert finished[-1] == whole.choices[0].finish_reason and set(finished[:-1]) <= {None}
    assert all(chunk.usage is None for chunk in text)
    assert usage.choices == [] and usage.usage == whole.usage


def test_embeddings_are_the_same_floats_in_both_encodings(server):
    # Unless the caller names an encoding, the client requests base64 and decodes it, after the strict validation.
    inputs = [PROMPT, "Add 3 and 4."]
    found = client(server, strict=False).embeddings.create(model=MODEL, input=inputs)
    floats = client(server).embeddings.create(model=MODEL, input=inputs, encoding_format="float")
    assert [item.index for item in found.data] == [0, 1]
    assert [item.embedding for item in found.data] == [
        pytest.approx(item.embedding, abs=1e-7) for item in floats.data
    ]
    assert found.usage.prompt_tokens == found.usage.total_tokens
    with pytest.raises(openai.BadRequestError) as error:
        client(server).embeddings.create(model=MODEL, input=PROMPT, dimensions=3)
    assert error.value.param == "dimensions"


def test_a_number_is_an_extra_that_the_client_passes_on(server):
    answer = client(server).completions.create(model=MODEL, prompt=PROMPT, extra_body={"number": {"objective": "mode"}})
    number = answer.choices[0].model_extra["number"]
    assert answer.choices[0].text == "356" and number["mode"] == 356
    assert abs(sum(number["mass"].values()) - 1) < 1e-6


@pytest.mark.parametrize(
    ("arguments", "kind", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"prompt": []}, openai.BadRequestError, "prompt"),
        ({"prompt": "egg " * 5000}, openai.BadRequestError, "prompt"),
        ({"extra_body": {"number": {"method": "magic"}}}, openai.BadRequestError, "number.method"),
    ],
)
def test_wrong_requests_raise_the_fitting_error(server, arguments, kind, param):
    with pytest.raises(kind) as error:
        client(server).completions.create(**({"model": MODEL, "prompt": "x"} | arguments))
    assert error.value.param == param and error.value.message
    assert error.value.request_id


SAID = [{"role": "system", "content": "Answer with a number."}, {"role": "user", "content": "What is 12 + 7?"}]


def test_a_chat_has_messages_log_probabilities_and_usage(chatting):
    answer = client(chatting).chat.completions.create(
        model="llama", messages=SAID, max_completion_tokens=4, temperature=0, logprobs=True, top_logprobs=2, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert answer.usage.prompt_tokens > 12 and answer._request_id


def test_a_streamed_chat_is_the_answer_in_pieces(chatting):
    arguments = dict(model="llama", messages=SAID, max_completion_tokens=6, seed=3)
    whole = client(chatting).chat.completions.create(**arguments)
    chunks = list(client(chatting).chat.completions.create(
        **arguments, stream=True, stream_options={"include_usage": True}
    ))
    *pieces, usage = chunks
    deltas = [chunk.choices[0].delta for chunk in pieces]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert usage.choices == [] and usage.usage == whole.usage


def test_a_chat_without_a_template_is_a_bad_request(server):
    with pytest.raises(openai.BadRequestError) as error:
        client(server).chat.completions.create(model=MODEL, messages=SAID)
    assert error.value.param == "messages" and "chat template" in error.value.message


def test_a_wrong_key_is_an_authentication_error(server):
    with pytest.raises(openai.AuthenticationError):
        client(server, key="wrong").completions.create(model=MODEL, prompt="x")
