"""How ranks find each other and talk (paper 3.5, 3.2).

The only room that calls `torch.distributed`.
"""
