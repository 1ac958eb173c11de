"""Token files as one long stream of tokens, of which any stretches can be read at once."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.token_files import Split

I64 = NDArray[np.int64]


class TokenStream:
    """The tokens of a split in order, memory-mapped; nothing is read before it is asked for."""

    def __init__(self, split: Split, folder: str | Path) -> None:
        self.tokens = split.tokens
        self.paths = [str(Path(folder) / file.path) for file in split.files]
        self._files = [
            _mapped(path, file.dtype, file.tokens)
            for path, file in zip(self.paths, split.files, strict=True)
        ]
        self._runs: I64 | None = None
        self.bytes_read = 0
        if split.runs:
            table = Path(folder) / split.runs
            rows = table.stat().st_size // 24
            self._runs = _mapped(str(table), "<i8", 3 * rows).reshape(rows, 3)

    def read(self, begins: I64, length: int) -> I64:
        """The `length` tokens from each of the places `begins`, as [len(begins), length]."""
        found = np.empty((len(begins), length), dtype=np.int64)
        if self._runs is None:
            tokens = self._files[0]
            self.bytes_read += found.size * tokens.itemsize
            for row, begin in enumerate(begins.tolist()):
                found[row] = tokens[begin : begin + length]
            return found
        first = np.searchsorted(self._runs[:, 0], begins, side="right") - 1
        for row, (begin, run) in enumerate(zip(begins.tolist(), first.tolist(), strict=True)):
            self._gather(found[row], begin, run)
        return found

    def files_of(self, begins: I64, length: int) -> list[str]:
        """The file that each stretch lies in; several with commas between them."""
        if self._runs is None:
            return self.paths[:1] * len(begins)
        first = np.searchsorted(self._runs[:, 0], begins, side="right") - 1
        last = np.searchsorted(self._runs[:, 0], begins + length - 1, side="right") - 1
        return [
            ", ".join(dict.fromkeys(self.paths[f] for f in self._runs[a : b + 1, 1].tolist()))
            for a, b in zip(first.tolist(), last.tolist(), strict=True)
        ]

    def _gather(self, out: I64, begin: int, run: int) -> None:
        """Fill `out` with the tokens from `begin`, which lies in the given run."""
        assert self._runs is not None, "only a stream of runs is gathered"
        done = 0
        while done < len(out):
            start, file, at = self._runs[run].tolist()
            stop = self._runs[run + 1, 0] if run + 1 < len(self._runs) else self.tokens
            size = min(len(out) - done, int(stop) - begin - done)
            source = at + begin + done - start
            out[done : done + size] = self._files[file][source : source + size]
            self.bytes_read += size * self._files[file].itemsize
            done += size
            run += 1


def _mapped(path: str, dtype: str, count: int) -> NDArray[Any]:
    """A file as an array; signed numbers as unsigned, so that a negative token is a huge one."""
    kind = np.dtype(dtype)
    if not count:
        return np.empty(0, kind)
    mapped = np.asarray(np.memmap(path, kind, "r", shape=(count,)))
    if kind.kind == "i" and kind.itemsize < 8:
        return mapped.view(f"<u{kind.itemsize}")
    return mapped
