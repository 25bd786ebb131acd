"""The feed-forward block of Qwen3-Next and Qwen3.5-MoE: a router, experts of which each row takes a few, and
one shared expert: ``reference`` in double precision, ``fused`` with weights packed once.

    p = softmax(W_r n);  S = the per_token largest of p, lowest expert first among equals
    w_e = p_e for e in S, divided by their sum where the model normalises
    y = sum over e in S, ascending, of w_e * E_e(n)  +  sigmoid(w_s . n) * E_shared(n)
    E(n) = W_down (silu(W_gate n) * W_up n)

n is the normalised residual. What a row gets is a function of that row alone, to the bit. Torch's own sigmoid
and silu are avoided for that: an element falls to their vector code or to their scalar tail, which round
differently, by how many rows there are. ``sum`` is, too: the order in which it adds is its own affair.
"""
