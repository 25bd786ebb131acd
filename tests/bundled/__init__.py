"""How the bundled model is made and measured. Training is run by hand, never by the tests."""
