"""Gates that a user can run: ``lossless`` here, ``rows`` in the kernels."""
