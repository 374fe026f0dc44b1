"""Requests for every field of vLLM's API for texts, of which `test_vllm.py` compares the answers."""

import json
from dataclasses import dataclass

PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
BEGUN = [*QUESTION, {"role": "assistant", "content": "The capital is"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "area": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "area"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "weather",
    "description": "Returns the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False},
}
TOOL = {"type": "function", "function": WEATHER}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
FUNCTION = {"type": "function", **WEATHER}


def asked(city):
    return {"role": "user", "content": f"How is the weather in {city}?"}


def called(city):
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "rain"}]


def called_items(city):
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": json.dumps({"city": city})}
    return [call, {"type": "function_call_output", "call_id": "a", "output": "rain"}]


# The model calls the function again, without being forced to.
CALLING = [asked("Rome"), *called("Rome"), asked("Paris"), *called("Paris"), asked("Rome")]
CALLING_ITEMS = [asked("Rome"), *called_items("Rome"), asked("Paris"), *called_items("Paris"), asked("Rome")]
LARK = 'start: "Paris" | "Rome"'
EBNF = 'root ::= city "!"\ncity ::= "Paris" | "Rome"'
USAGE = {"include_usage": True}


@dataclass
class Request:
    name: str
    route: str
    body: dict
    method: str = "POST"

    @property
    def is_greedy(self):
        return self.body is not None and self.body.get("temperature", 0) == 0 and not self.body.get("stream")


# The value of each field, or several fields, that completions and chats share.
SHARED = {
    "nothing": {},
    "n": {"n": 2, "temperature": 0.7, "seed": 1},
    "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "seed": 3},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {"260": 5}},
    "stop": {"stop": ["is", "."], "max_tokens": 20},
    "stop text": {"stop": ".", "max_tokens": 20},
    "include_stop_str_in_output": {"stop": ["."], "include_stop_str_in_output": True, "max_tokens": 20},
    "stop_token_ids": {"stop_token_ids": [30], "max_tokens": 20},
    "shown stop_token_ids": {"stop_token_ids": [30], "include_stop_str_in_output": True, "max_tokens": 20},
    "min_tokens": {"min_tokens": 6, "stop": ["."]},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 30},
    "skip_special_tokens": {"skip_special_tokens": False, "max_tokens": 30},
    "spaces_between_special_tokens": {"spaces_between_special_tokens": False},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 3, "return_token_ids": True},
    "truncate_prompt_tokens -1": {"truncate_prompt_tokens": -1},
    "truncation_side": {"truncate_prompt_tokens": 3, "truncation_side": "right", "return_token_ids": True},
    "allowed_token_ids": {"allowed_token_ids": [30, 260, 284]},
    "bad_words": {"bad_words": ["Paris", "capital"]},
    "return_token_ids": {"return_token_ids": True},
    "add_special_tokens": {"add_special_tokens": True, "return_token_ids": True},
    "use_beam_search": {"use_beam_search": True, "n": 2, "temperature": 0.0},
    "length_penalty": {"use_beam_search": True, "n": 2, "length_penalty": 2.0},
    "structured json": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
    "structured json text": {"structured_outputs": {"json": '{"enum": [7]}'}},
    "structured regex": {"structured_outputs": {"regex": "Paris|Rome"}},
    "structured choice": {"structured_outputs": {"choice": ["Paris", "Rome"]}},
    "structured grammar in Lark": {"structured_outputs": {"grammar": LARK}},
    "structured grammar in EBNF": {"structured_outputs": {"grammar": EBNF}},
    "structured json_object": {"structured_outputs": {"json_object": True}, "temperature": 1.0, "seed": 1, "max_tokens": 20},
    "disable_any_whitespace": {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, "max_tokens": 60},
    "whitespace_pattern": {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}, "max_tokens": 60},
    "disable_additional_properties": {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}, "max_tokens": 60},
    "structural_tag": {"structured_outputs": {"structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}'}},
    "two constraints": {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    "no constraint": {"structured_outputs": {}},
    "response_format text": {"response_format": {"type": "text"}},
    "response_format json_object": {"response_format": {"type": "json_object"}, "temperature": 1.0, "seed": 1, "max_tokens": 20},
    "response_format json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}},
        "max_tokens": 60,
    },
    "priority 0": {"priority": 0},
    "priority": {"priority": 1},
    "request_id": {"request_id": "abc"},
    "session_id": {"session_id": "abc"},
    "cache_salt": {"cache_salt": "abc"},
    "empty cache_salt": {"cache_salt": ""},
    "user": {"user": "me"},
    "kv_transfer_params": {"kv_transfer_params": {}},
    "ec_transfer_params": {"ec_transfer_params": {}},
    "vllm_xargs": {"vllm_xargs": {"a": 1}},
    "repetition_detection": {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}},
    "thinking_token_budget": {"thinking_token_budget": 5},
    "stream_interval": {"stream_interval": 2},
    "streamed interval": {"stream_interval": 2, "stream": True},
    "watermarking": {"watermarking": False},
    "routed_experts_prompt_start": {"routed_experts_prompt_start": 0},
    "return_token_offsets": {"return_token_offsets": True},
    "mm_payload": {"mm_payload": "tensors"},
    "stream": {"stream": True},
    "stream of n": {"stream": True, "n": 2, "temperature": 0.7},
    "include_usage": {"stream": True, "stream_options": USAGE},
    "continuous_usage_stats": {"stream": True, "stream_options": {**USAGE, "continuous_usage_stats": True}},
    "stream of return_token_ids": {"stream": True, "return_token_ids": True},
    "stream of a structure": {"stream": True, "structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
    "stream of a stop": {"stream": True, "stop": ["."], "max_tokens": 20},
    "stream_options without stream": {"stream_options": USAGE},
    "nulls": dict.fromkeys(["temperature", "top_p", "stop", "seed", "logprobs", "prompt_logprobs", "response_format", "user"]),
    "unknown field": {"colour": "red"},
    "temperature -1": {"temperature": -1},
    "top_p 0": {"top_p": 0},
    "top_k -1": {"top_k": -1},
    "n 0": {"n": 0},
    "max_tokens 0": {"max_tokens": 0},
    "max_tokens beyond the context": {"max_tokens": 100_000},
    "five stops": {"stop": ["a", "b", "c", "d", "e"]},
    "best_of": {"best_of": 2, "temperature": 0.7},
    "another model": {"model": "nobody"},
    "older name": {"guided_choice": ["Paris", "Rome"]},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "prompt_logprobs 0": {"prompt_logprobs": 0},
    "prompt_logprobs of a stream": {"prompt_logprobs": 1, "stream": True},
}

COMPLETIONS = {
    "ids": {"prompt": [504, 3575, 282, 4649, 314]},
    "texts": {"prompt": [PROMPT, "Two and two is"]},
    "lists of ids": {"prompt": [[504, 3575], [504, 3575, 282]]},
    "empty prompt": {"prompt": ""},
    "no prompt": {"prompt": None},
    "echo": {"echo": True},
    "echo of ids": {"echo": True, "prompt": [504, 3575, 282, 4649, 314]},
    "echo with logprobs": {"echo": True, "logprobs": 1},
    "echo only": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "stream of echo": {"echo": True, "stream": True},
    "logprobs 0": {"logprobs": 0},
    "logprobs": {"logprobs": 2},
    "logprobs 100": {"logprobs": 100},
    "stream of logprobs": {"logprobs": 1, "stream": True},
    "logprob_token_ids": {"logprobs": 1, "logprob_token_ids": [260, 30]},
    "return_tokens_as_token_ids": {"logprobs": 1, "return_tokens_as_token_ids": True},
    "suffix": {"suffix": "!"},
    "prompt_embeds": {"prompt_embeds": "abc"},
}

CHATS = {
    "system": {"messages": [{"role": "system", "content": "You are a poet."}, *QUESTION]},
    "developer": {"messages": [{"role": "developer", "content": "You are a poet."}, *QUESTION]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]},
    "name": {"messages": [{"role": "user", "name": "me", "content": "Hello"}]},
    "no messages": {"messages": []},
    "unknown role": {"messages": [{"role": "poet", "content": "Hello"}]},
    "max_completion_tokens": {"max_completion_tokens": 5},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "top_logprobs 0": {"logprobs": True, "top_logprobs": 0},
    "top_logprobs without logprobs": {"top_logprobs": 2},
    "stream of logprobs": {"logprobs": True, "top_logprobs": 1, "stream": True},
    "logprob_token_ids": {"logprobs": True, "top_logprobs": 1, "logprob_token_ids": [260, 30]},
    "return_tokens_as_token_ids": {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True},
    "echo": {"messages": BEGUN, "echo": True, "continue_final_message": True, "add_generation_prompt": False},
    "stream of echo": {"messages": BEGUN, "echo": True, "continue_final_message": True, "add_generation_prompt": False, "stream": True},
    "continue_final_message": {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True},
    "continue_final_message with a new message": {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
    "add_generation_prompt": {"add_generation_prompt": False, "return_token_ids": True},
    "documents": {"documents": [{"title": "a", "text": "b"}]},
    "chat_template": {"chat_template": "{{ messages[0]['content'] }}"},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "media_io_kwargs": {"media_io_kwargs": {}},
    "mm_processor_kwargs": {"mm_processor_kwargs": {}},
    "return_prompt_text": {"return_prompt_text": True},
    "include_reasoning": {"include_reasoning": False},
    "tools": {"tools": [TOOL]},
    "tool_choice none": {"tools": [TOOL], "tool_choice": "none"},
    "tool_choice auto": {"tools": [TOOL], "tool_choice": "auto"},
    "tool_choice required": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    "tool_choice required of two": {"tools": [TOOL, TIME], "tool_choice": "required", "max_tokens": 60},
    "tool_choice of a function": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 60},
    "tool_choice of an unknown function": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
    "tool_choice without tools": {"tool_choice": "required"},
    "empty tools": {"tools": []},
    "strict": {"tools": [{"type": "function", "function": {**WEATHER, "strict": True}}], "messages": CALLING, "max_tokens": 60},
    "parallel_tool_calls": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60},
    "call by choice": {"tools": [TOOL], "messages": CALLING, "max_tokens": 60},
    "logprobs of a call": {"tools": [TOOL], "messages": CALLING, "max_tokens": 60, "logprobs": True},
    "stream of a text with tools": {"tools": [TOOL], "stream": True},
    "stream of a call by choice": {"tools": [TOOL], "messages": CALLING, "max_tokens": 60, "stream": True},
    "stream of a required call": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60, "stream": True},
    "stream of a call": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 60,
        "stream": True,
    },
    "result of a call": {"messages": [asked("Rome"), *called("Rome")]},
    "result of a call with tools": {"messages": [asked("Rome"), *called("Rome")], "tools": [TOOL]},
    "metadata": {"metadata": {"a": "b"}},
    "service_tier": {"service_tier": "auto"},
    "store": {"store": True},
    **{f"reasoning_effort {effort}": {"reasoning_effort": effort} for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", "huge")},
}

RESPONSES = {
    "text": {},
    "messages": {"input": QUESTION},
    "items": {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]},
    "instructions": {"instructions": "You are a poet."},
    "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "seed": 3},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "stop": {"stop": ["."]},
    "stop_token_ids": {"stop_token_ids": [30]},
    "ignore_eos": {"ignore_eos": True},
    "skip_special_tokens": {"skip_special_tokens": False},
    "include_stop_str_in_output": {"stop": ["."], "include_stop_str_in_output": True},
    "logit_bias": {"logit_bias": {"260": 5}},
    "top_logprobs": {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "include": {"include": ["message.output_text.logprobs"]},
    "top_logprobs without include": {"top_logprobs": 2},
    "unknown include": {"include": ["everything"]},
    "stream of logprobs": {"top_logprobs": 1, "include": ["message.output_text.logprobs"], "stream": True},
    "text.format": {"text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}, "max_output_tokens": 60},
    "structured_outputs": {"structured_outputs": {"choice": ["Paris", "Rome"]}},
    "tools": {"tools": [FUNCTION], "tool_choice": "auto"},
    "tool_choice required": {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 60},
    "tool_choice of a function": {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "weather"}, "max_output_tokens": 60},
    "call by choice": {"tools": [FUNCTION], "input": CALLING_ITEMS, "max_output_tokens": 60},
    "stream of a call by choice": {"tools": [FUNCTION], "input": CALLING_ITEMS, "max_output_tokens": 60, "stream": True},
    "stream of a required call": {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 60, "stream": True},
    "results of calls": {"input": [asked("Rome"), *called_items("Rome")]},
    "max_tool_calls": {"max_tool_calls": 1},
    "parallel_tool_calls": {"parallel_tool_calls": False},
    "previous_response_id": {"previous_response_id": "resp_1"},
    "metadata": {"metadata": {"a": "b"}},
    "reasoning": {"reasoning": {"effort": "low"}},
    "include_reasoning": {"include_reasoning": False},
    "service_tier": {"service_tier": "auto"},
    "store": {"store": False},
    "truncation": {"truncation": "auto"},
    "user": {"user": "me"},
    "prompt_cache_key": {"prompt_cache_key": "abc"},
    "priority": {"priority": 0},
    "cache_salt": {"cache_salt": "abc"},
    "request_id": {"request_id": "resp_abc"},
    "session_id": {"session_id": "abc"},
    "chat_template_kwargs": {"chat_template_kwargs": {"a": 1}},
    "vllm_xargs": {"vllm_xargs": {"a": 1}},
    "kv_transfer_params": {"kv_transfer_params": {}},
    "enable_response_messages": {"enable_response_messages": True},
    "background": {"background": True},
    "stream": {"stream": True},
    "stream of a call": {
        "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "weather"},
        "max_output_tokens": 60,
        "stream": True,
    },
    "no input": {"input": None},
}

OTHERS = [
    Request("models", "/v1/models", None, "GET"),
    Request("version", "/version", None, "GET"),
    Request("health", "/health", None, "GET"),
    Request("ping", "/ping", None, "GET"),
    Request("load", "/load", None, "GET"),
    Request("tokenize", "/tokenize", {"model": "model", "prompt": PROMPT}),
    Request("tokenize without special tokens", "/tokenize", {"prompt": PROMPT, "add_special_tokens": False}),
    Request("token_strs", "/tokenize", {"prompt": PROMPT, "return_token_strs": True}),
    Request("tokenize a chat", "/tokenize", {"messages": QUESTION}),
    Request("tokenize a chat without a new message", "/tokenize", {"messages": QUESTION, "add_generation_prompt": False}),
    Request("tokenize a begun message", "/tokenize", {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False}),
    Request("tokenize tools", "/tokenize", {"messages": QUESTION, "tools": [TOOL]}),
    Request("tokenize with variables", "/tokenize", {"messages": QUESTION, "chat_template_kwargs": {"a": 1}}),
    Request("tokenize with a template", "/tokenize", {"messages": QUESTION, "chat_template": "{{ messages[0]['content'] }}"}),
    Request("tokenize nothing", "/tokenize", {}),
    Request("detokenize", "/detokenize", {"tokens": [504, 3575]}),
    Request("detokenize nothing", "/detokenize", {"tokens": []}),
    Request("detokenize an unknown id", "/detokenize", {"tokens": [10_000_000]}),
    Request("generative_scoring", "/generative_scoring", {"query": PROMPT, "items": [" Paris", " Rome"], "label_token_ids": [30, 28]}),
    Request(
        "generative_scoring of ids",
        "/generative_scoring",
        {"query": [504, 3575], "items": [[282], [28]], "label_token_ids": [30, 28], "apply_softmax": False, "item_first": True},
    ),
    Request("generative_scoring without labels", "/generative_scoring", {"query": PROMPT, "items": ["a"]}),
]


def requests():
    """All requests, of which each has one field or a few that belong together."""
    usual = {"model": "model", "temperature": 0.0}
    for name, fields in {**SHARED, **COMPLETIONS}.items():
        yield Request(name, "/v1/completions", {**usual, "max_tokens": 8, "prompt": PROMPT, **fields})
    for name, fields in {**SHARED, **CHATS}.items():
        yield Request(name, "/v1/chat/completions", {**usual, "max_tokens": 8, "messages": QUESTION, **fields})
    for name, fields in RESPONSES.items():
        yield Request(name, "/v1/responses", {**usual, "max_output_tokens": 16, "input": QUESTION[0]["content"], **fields})
    yield from OTHERS
