"""Rotary positions (arXiv 2104.09864) in halves: dimension i turns with i + head_dim / 2.

``reference`` and ``fused`` offer ``rotate(x, cos, sin, out)``; ``tables`` gives the angles of a launch.
"""
