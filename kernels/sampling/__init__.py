"""From logits to tokens: ``judge`` decides a round, ``reference`` has the same signatures as sentences.

``argmax``, ``adjust``, ``filters``, ``race``, ``chain``, ``logprobs`` are its parts, ``philox`` the random words.
"""

from txdecode.kernels.sampling.rounds import judge

__all__ = ["judge"]
