"""The paper's architectures around T5, written from their description: RT and xVal.

`architectures` in config.json is the class name, by which the server recognises the kind.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import T5ForConditionalGeneration

# The number that scales to 10.
NUMBER_MAX = 3e9
# Number of positions that xVal learns.
POSITIONS = 512
# Width of the hidden layer in xVal's number head.
HEAD_WIDTH = 1024


def log_scaled(numbers):
    """Returns sign(x) log10(|x| + 1), scaled so that 3e9 becomes 10."""
    return torch.sign(numbers) * torch.log10(numbers.abs() + 1) / (math.log10(NUMBER_MAX) / 10)


class T5RegressionModelRT(T5ForConditionalGeneration):
    """Regression Transformer: a fixed table of number embeddings is added to the embeddings of both stacks."""

    def __init__(self, config):
        super().__init__(config)
        table = nn.Embedding(config.vocab_size, config.d_model)
        table.weight.requires_grad_(False)
        self.shared.number_embeddings = nn.ModuleDict({"embedding": table})

    def fill_number_embeddings(self, places, log_scale):
        """`places` maps an id to (digit, power of ten). Dimensions 2k and 2k + 1 hold the value divided by 2k + 1, and its negative."""
        table = torch.zeros(self.config.vocab_size, self.config.d_model, dtype=torch.float64)
        dimensions = torch.arange(self.config.d_model)
        divisors = 2 * (dimensions // 2) + 1
        signs = 1 - 2 * (dimensions % 2)
        for index, (digit, place) in places.items():
            values = signs * (digit * 10.0**place) / divisors
            table[index] = log_scaled(values) if log_scale else values / (NUMBER_MAX / 10)
        self.shared.number_embeddings["embedding"].weight.data.copy_(table)

    def embed(self, ids):
        """Maps ids [B, T] to embeddings [B, T, d_model]."""
        return self.shared(ids) + self.shared.number_embeddings["embedding"](ids)

    def forward(self, input_ids, attention_mask=None, decoder_input_ids=None, **options):
        return super().forward(
            inputs_embeds=self.embed(input_ids), attention_mask=attention_mask,
            decoder_inputs_embeds=self.embed(decoder_input_ids), **options,
        )  # fmt: skip


class T5RegressionModelXval(T5ForConditionalGeneration):
    """xVal: the embedding of `[NUM]` is multiplied with its number; a second head predicts numbers."""

    def __init__(self, config):
        super().__init__(config)
        self.encoder_position_embed = nn.Embedding(POSITIONS, config.d_model)
        self.decoder_position_embed = nn.Embedding(POSITIONS, config.d_model)
        self.num_head = nn.Sequential(
            nn.Linear(config.d_model, HEAD_WIDTH), nn.GELU(), nn.Linear(HEAD_WIDTH, 1)
        )

    def embed(self, ids, factors, positions):
        """Maps ids and factors [B, T] to embeddings [B, T, d_model]."""
        return self.shared(ids) * factors.unsqueeze(-1) + positions.weight[: ids.shape[1]]

    def forward(self, input_ids, attention_mask, decoder_input_ids, factors, decoder_factors):
        """Factors are 1 for text. Returns logits [B, D, V] and numbers [B, D], one for each decoder position."""
        encoded = self.encoder(
            inputs_embeds=self.embed(input_ids, factors, self.encoder_position_embed), attention_mask=attention_mask
        ).last_hidden_state
        hidden = self.decoder(
            inputs_embeds=self.embed(decoder_input_ids, decoder_factors, self.decoder_position_embed),
            encoder_hidden_states=encoded, encoder_attention_mask=attention_mask, use_cache=False,
        ).last_hidden_state * self.config.d_model**-0.5  # fmt: skip
        return self.lm_head(hidden), self.num_head(hidden).squeeze(-1)


def xval_number_loss(predicted, numbers):
    """Returns the mean squared error of predictions and labels [N], after both are standardised together."""
    together = torch.cat([predicted, numbers])
    deviation = together.std(unbiased=False).clamp_min(1e-6)
    return F.mse_loss((predicted - together.mean()) / deviation, (numbers - together.mean()) / deviation)
