"""One file per command: parse, call one engine function, show, exit."""
