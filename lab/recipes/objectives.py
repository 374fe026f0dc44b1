"""Training objectives: cross entropy, alone or plus lambda times a Number Token Loss of the authors' package `ntloss`.

The losses take logits that are already aligned with the labels: for decoder-only models, the caller shifts them. Padding is
-100 and does not count: `ntloss` masks it. (The NTL-MSE, NTL-MAE and NTL-Huber of the paper's code treat it as a token of the
vocabulary; these recipes follow `ntloss`.) As in the paper, the probability of other tokens has no influence
(`reweigh=False`).
"""

import copy
from functools import partial

import torch.nn.functional as F
from ntloss import NTLoss, NTLossDotProduct

OBJECTIVES = {
    "ce": None,
    "ntl-was": NTLoss,
    "ntl-mse": partial(NTLossDotProduct, loss_function=F.mse_loss),
    "ntl-mae": partial(NTLossDotProduct, loss_function=F.l1_loss),
    "ntl-huber": partial(NTLossDotProduct, loss_function=F.huber_loss),
}
IGNORE = -100


class Objective:
    def __init__(self, name, weight, tokenizer, vocab_size):
        self.weight = weight
        make = OBJECTIVES[name]
        # ntloss adds tokens to the tokenizer that it is given, so it gets a copy.
        self.number_loss = make and make(
            copy.deepcopy(tokenizer), vocab_size=vocab_size, digit_level=True, reweigh=False
        )

    def __call__(self, logits, labels):
        """Takes logits [B, D, V] and labels [B, D] with -100 for padding. Returns the loss, and its parts by name."""
        logits = logits.float()
        token_loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        if self.number_loss is None:
            return token_loss, {"token_loss": token_loss}
        number_loss = self.number_loss(logits, labels)
        return token_loss + self.weight * number_loss, {"token_loss": token_loss, "number_loss": number_loss}
