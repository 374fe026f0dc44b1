"""Greedy decoding by Hugging Face's `generate`, which models of optimum have, too."""

import torch

import ids


def decoder(model, prompts: list[list[int]], new_tokens: int):
    """A function of a batch size, which returns the new ids of each prompt, all of the same number."""

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
        # The first id of a decoder's own text is what begins every text.
        return answers[:, 1 if model.config.is_encoder_decoder else inputs.shape[1] :].tolist()

    return decode
