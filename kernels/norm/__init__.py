"""Root mean square normalisation (arXiv 1910.07467): ``reference`` and ``fused``, one signature.

``rms_norm(x, weight, eps)`` normalises the last dimension of ``x`` [rows, size] and scales it by ``weight``
[size]; ``rms_norm_heads`` does so for ``x`` [rows, heads, size] with a ``weight`` [heads, size]. At least
two rows: with one, torch may reduce in another order.
"""
