"""Greedy decoding with Hugging Face's `generate`, which optimum's models also have."""

import torch

import ids


def decoder(model, prompts: list[list[int]], new_tokens: int):
    """Returns a function from a batch size to the new ids of each prompt, which all have the same length."""

    @torch.inference_mode()
    def decode(batch: int) -> list[list[int]]:
        inputs = torch.tensor(ids.batch(prompts, batch))
        answers = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            num_beams=1,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )
        # An encoder-decoder's output starts with the start token; a decoder-only model's output starts with
        # the prompt.
        return answers[:, 1 if model.config.is_encoder_decoder else inputs.shape[1] :].tolist()

    return decode
