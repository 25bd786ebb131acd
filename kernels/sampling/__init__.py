"""From logits to tokens: ``reference`` and ``argmax``, one signature."""
