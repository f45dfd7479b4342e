"""What Python and MAX call: thin, no maths, one call protocol."""
