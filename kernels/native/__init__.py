"""Operators of our own for the CPU, compiled by numba from loops and from the LLVM vector code in ``lanes``.

Every sum has one order that is written down, every product-and-sum is fused where the code says so and nowhere
else, and lanes never mix: a row's bits depend neither on the rows beside it, nor on how many threads share the
work, nor on the width of the processor's vectors. The same log replays to the same bits on another machine.

``lanes`` vector code; ``panels`` the layout of matrices; ``product`` products of rows with panels;
``attention`` keys, values and attention in pages; ``forward`` a whole dense forward; ``team`` threads.
"""
