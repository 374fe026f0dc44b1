"""Every difference between a real vLLM 0.32 and this server that `test_vllm.py` finds. docs/API.md explains them."""

DIFFERENCES = frozenset(
    """
/detokenize detokenize an unknown id: vLLM 200, ours rejected
/v1/chat/completions disable_any_whitespace: other text
/v1/chat/completions empty cache_salt: vLLM rejected, ours 200
/v1/chat/completions empty tools: vLLM rejected, ours 200
/v1/chat/completions max_tokens 0: vLLM rejected, ours 200
/v1/chat/completions no constraint: vLLM rejected, ours 200
/v1/chat/completions older name: other text
/v1/chat/completions repetition_detection: vLLM 200, ours rejected
/v1/chat/completions return_prompt_text: vLLM 200, ours rejected
/v1/chat/completions unknown field: vLLM 200, ours rejected
/v1/chat/completions unknown role: vLLM 200, ours rejected
/v1/chat/completions vllm_xargs: vLLM 200, ours rejected
/v1/chat/completions whitespace_pattern: other text
/v1/completions disable_any_whitespace: other text
/v1/completions empty cache_salt: vLLM rejected, ours 200
/v1/completions empty prompt: vLLM rejected, ours 200
/v1/completions max_tokens 0: vLLM rejected, ours 200
/v1/completions no constraint: vLLM rejected, ours 200
/v1/completions older name: other text
/v1/completions repetition_detection: vLLM 200, ours rejected
/v1/completions unknown field: vLLM 200, ours rejected
/v1/completions use_beam_search: other text
/v1/completions vllm_xargs: vLLM 200, ours rejected
/v1/completions whitespace_pattern: other text
/v1/responses enable_response_messages: vLLM 200, ours rejected
/v1/responses previous_response_id: vLLM 404, ours rejected
/v1/responses truncation: vLLM 200, ours rejected
/v1/responses vllm_xargs: vLLM 200, ours rejected
/detokenize only ours: content: text
/health only ours: status: text
/ping only ours: status: text
/tokenize only ours: token_strs[]: text
/v1/chat/completions only ours: error.code: text
/v1/chat/completions only vLLM: choices[].delta.content: text
/v1/chat/completions only vLLM: choices[].message.content: text
/v1/chat/completions only vLLM: choices[].stop_reason: number
/v1/chat/completions only vLLM: error.code: number
/v1/chat/completions only vLLM: prompt_logprobs[].*.decoded_token: text
/v1/chat/completions only vLLM: prompt_logprobs[].*.logprob: number
/v1/chat/completions only vLLM: prompt_logprobs[].*.rank: number
/v1/completions only ours: choices[].cumulative_logprob: number
/v1/completions only ours: error.code: text
/v1/completions only vLLM: choices[].prompt_logprobs[].*.decoded_token: text
/v1/completions only vLLM: choices[].prompt_logprobs[].*.logprob: number
/v1/completions only vLLM: choices[].prompt_logprobs[].*.rank: number
/v1/completions only vLLM: choices[].prompt_token_ids[]: number
/v1/completions only vLLM: choices[].stop_reason: number
/v1/completions only vLLM: error.code: number
/v1/models only ours: data[].backend: text
/v1/models only ours: data[].chat: boolean
/v1/models only ours: data[].context_length: number
/v1/models only ours: data[].dtype: text
/v1/models only ours: data[].encoder_decoder: boolean
/v1/models only ours: data[].examples: list
/v1/models only ours: data[].fingerprint: text
/v1/models only ours: data[].kind: text
/v1/models only ours: data[].kv_cache_dtype: text
/v1/models only ours: data[].number_encoding: text
/v1/models only ours: data[].parameters: number
/v1/models only ours: data[].truncation_side: text
/v1/models only vLLM: data[].permission[].allow_create_engine: boolean
/v1/models only vLLM: data[].permission[].allow_fine_tuning: boolean
/v1/models only vLLM: data[].permission[].allow_logprobs: boolean
/v1/models only vLLM: data[].permission[].allow_sampling: boolean
/v1/models only vLLM: data[].permission[].allow_search_indices: boolean
/v1/models only vLLM: data[].permission[].allow_view: boolean
/v1/models only vLLM: data[].permission[].created: number
/v1/models only vLLM: data[].permission[].id: text
/v1/models only vLLM: data[].permission[].is_blocking: boolean
/v1/models only vLLM: data[].permission[].object: text
/v1/models only vLLM: data[].permission[].organization: text
/v1/models only vLLM: data[].root: text
/v1/responses only ours: (response.completed) response.metadata: object
/v1/responses only ours: (response.completed) response.output[].content[].logprobs: list
/v1/responses only ours: (response.completed) response.store: boolean
/v1/responses only ours: (response.completed) response.text.format.type: text
/v1/responses only ours: (response.completed) response.top_logprobs: number
/v1/responses only ours: (response.content_part.done) part.logprobs: list
/v1/responses only ours: (response.created) response.metadata: object
/v1/responses only ours: (response.created) response.store: boolean
/v1/responses only ours: (response.created) response.text.format.type: text
/v1/responses only ours: (response.created) response.top_logprobs: number
/v1/responses only ours: (response.in_progress) response.metadata: object
/v1/responses only ours: (response.in_progress) response.store: boolean
/v1/responses only ours: (response.in_progress) response.text.format.type: text
/v1/responses only ours: (response.in_progress) response.top_logprobs: number
/v1/responses only ours: (response.output_item.done) item.content[].logprobs: list
/v1/responses only ours: (response.output_text.delta) logprobs[].bytes[]: number
/v1/responses only ours: (response.output_text.delta) logprobs[].top_logprobs[].*[]: number
/v1/responses only ours: (response.output_text.done) logprobs[].bytes[]: number
/v1/responses only ours: (response.output_text.done) logprobs[].logprob: number
/v1/responses only ours: (response.output_text.done) logprobs[].token: text
/v1/responses only ours: (response.output_text.done) logprobs[].top_logprobs[].*: number
/v1/responses only ours: (response.output_text.done) logprobs[].top_logprobs[].*: text
/v1/responses only ours: (response.output_text.done) logprobs[].top_logprobs[].*[]: number
/v1/responses only ours: metadata: object
/v1/responses only ours: output[].content[].logprobs: list
/v1/responses only ours: output[].content[].logprobs[].bytes[]: number
/v1/responses only ours: output[].content[].logprobs[].logprob: number
/v1/responses only ours: output[].content[].logprobs[].token: text
/v1/responses only ours: output[].content[].logprobs[].top_logprobs[].*: number
/v1/responses only ours: output[].content[].logprobs[].top_logprobs[].*: text
/v1/responses only ours: output[].content[].logprobs[].top_logprobs[].*[]: number
/v1/responses only ours: store: boolean
/v1/responses only ours: text.format.type: text
/v1/responses only ours: top_logprobs: number
/v1/responses only vLLM: (response.completed) response.background: boolean
/v1/responses only vLLM: (response.completed) response.frequency_penalty: number
/v1/responses only vLLM: (response.completed) response.presence_penalty: number
/v1/responses only vLLM: (response.completed) response.service_tier: text
/v1/responses only vLLM: (response.completed) response.usage.input_tokens_details.cached_tokens_per_turn: list
/v1/responses only vLLM: (response.completed) response.usage.input_tokens_details.input_tokens_per_turn: list
/v1/responses only vLLM: (response.completed) response.usage.output_tokens_details.output_tokens_per_turn: list
/v1/responses only vLLM: (response.completed) response.usage.output_tokens_details.tool_output_tokens: number
/v1/responses only vLLM: (response.completed) response.usage.output_tokens_details.tool_output_tokens_per_turn: list
/v1/responses only vLLM: (response.created) response.background: boolean
/v1/responses only vLLM: (response.created) response.frequency_penalty: number
/v1/responses only vLLM: (response.created) response.presence_penalty: number
/v1/responses only vLLM: (response.created) response.service_tier: text
/v1/responses only vLLM: (response.in_progress) response.background: boolean
/v1/responses only vLLM: (response.in_progress) response.frequency_penalty: number
/v1/responses only vLLM: (response.in_progress) response.presence_penalty: number
/v1/responses only vLLM: (response.in_progress) response.service_tier: text
/v1/responses only vLLM: (response.output_text.done) logprobs: list
/v1/responses only vLLM: background: boolean
/v1/responses only vLLM: frequency_penalty: number
/v1/responses only vLLM: max_tool_calls: number
/v1/responses only vLLM: presence_penalty: number
/v1/responses only vLLM: service_tier: text
/v1/responses only vLLM: usage.input_tokens_details.cached_tokens_per_turn: list
/v1/responses only vLLM: usage.input_tokens_details.input_tokens_per_turn: list
/v1/responses only vLLM: usage.output_tokens_details.output_tokens_per_turn: list
/v1/responses only vLLM: usage.output_tokens_details.tool_output_tokens: number
/v1/responses only vLLM: usage.output_tokens_details.tool_output_tokens_per_turn: list
/v1/responses only vLLM: user: text
/version only ours: commit: text
/version only ours: device: text
/version only ours: features: list
/version only ours: name: text
""".strip().splitlines()
)
