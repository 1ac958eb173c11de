"""What a layout would cost, before anyone runs it (paper 3.1, 3.6, 6.1).

May import `schedule`, `events`, `spec`, `units`, `errors`; never torch.
"""
