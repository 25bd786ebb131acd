"""Root mean square normalisation (arXiv 1910.07467): ``reference`` and ``fused``, one signature.

``rms_norm`` of torch is ten kernels, and a kernel that comes after megabytes of weights starts with cold
caches. So the residual carries one more column, the constant ``c = sqrt(size * eps)``. Then

    x / sqrt(mean(x^2) + eps)  =  sqrt(size) * x / |(x, c)|

which is one kernel, ``unit_rows``; the scale of the norm and sqrt(size) are folded into the matrix behind it,
which has a column of zeros for the constant. ``rms_norm_heads`` is the norm over head_dim of Qwen3.
"""
