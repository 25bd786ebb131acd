"""The gated delta net (arXiv 2412.06464) over packed rows of many sequences: ``reference`` and ``recurrent``,
one signature.

The canonical form is the recurrence, row by row in one order of operations, in fp32. So a row's bits depend on
its own prefix alone, and a state can be made again from its rows (``fold``) to the bit.
"""
