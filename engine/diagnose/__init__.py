"""What is wrong with a run, who, how sure, what next (paper 5).

Reads our own event files and what foreign jobs leave behind (logs, flight-recorder dumps,
traces, heartbeats, stacks). Imports `schedule`, `events`, `spec`, `units`, `errors`; never
torch.
"""
