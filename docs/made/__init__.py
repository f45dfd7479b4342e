"""Pictures and tables of the documentation, made from what is compiled, measured or written."""
