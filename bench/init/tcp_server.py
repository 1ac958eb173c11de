"""Serve a bare TCPStore until the standard input closes: tcp_server.py [nouv]."""

import sys

import torch.distributed as dist

s = dist.TCPStore(
    "127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv="nouv" not in sys.argv
)
print(s.port, flush=True)
sys.stdin.read()
