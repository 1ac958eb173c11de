"""What happened, when, on which rank (paper 5). Imports `spec`, `errors`; never torch."""
