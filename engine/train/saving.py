"""Checkpoints of a run: when they begin, what a step waits for, how a restart finds them.

A save begins after an optimizer update and is copied while the next step computes; only the next
update waits for it. A process of the node writes it to the store behind training
(engine/ckpt/flush.py). A restarted run takes the newest snapshot from memory, and reads the store
only if there is none.
"""

import contextlib
import logging
import os
import platform
import shutil
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.ckpt.arena import SLOTS, Spool, spool_folder
from engine.ckpt.catalog import ABANDONED, begin_branch, parse_folder
from engine.ckpt.flush import FlushOptions
from engine.ckpt.leftovers import finish_together
from engine.ckpt.manifest import COMMITTED, MARKER_LIMIT, CheckpointMeta
from engine.ckpt.memory import load_from_memory
from engine.ckpt.partner import PEERS
from engine.ckpt.prune import keep_newest
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.ring import Ring, address_towards, bring_copies
from engine.ckpt.save import agree, save_checkpoint
from engine.ckpt.share import Share
from engine.ckpt.store import open_store, split
from engine.ckpt.two_stage import TwoStage
from engine.comm.collectives import barrier, broadcast, gather_bytes
from engine.errors import CheckpointError, EngineError, MissingError
from engine.events.writer import EventWriter
from engine.spec.load import dump_recipe
from engine.spec.recipe import Recipe
from engine.train.backlog import Backlog
from engine.train.build import Engine
from engine.train.policy import Policy
from engine.train.resume import (
    Own,
    checkpoint_root,
    checkpoint_to_resume,
    run_identity,
    run_mark,
)
from engine.train.state import loaded, pieces_to_load, pieces_to_save, share_copies
from engine.train.task import RankTask

logger = logging.getLogger(__name__)

_MARK_BYTES = 1 << 10
_ROUND_S = 2.0
"""How often ranks that wait for the store tell each other that they still live."""


def _meeting_host(recipe: Recipe, task: RankTask) -> str:
    """Where all nodes reach the job: the store's host, if there is a store."""
    return urllib.parse.urlsplit(task.store_url).hostname or recipe.train.host


class Saver:
    """Saves and restores of one rank."""

    def __init__(
        self, engine: Engine, recipe: Recipe, folder: Path, events: EventWriter, task: RankTask
    ) -> None:
        self.node = task.node or platform.node()
        self._memory = Path(task.memory) if task.memory else None
        self.engine, self.recipe, self.folder, self.events = engine, recipe, folder, events
        self.spec, self.mesh = recipe.checkpoint, engine.mesh
        self.root = checkpoint_root(folder, self.spec.path)
        self.policy = Policy(self.spec)
        self._attempt = task.attempt
        self._is_new = not (folder / "metrics.jsonl").exists()
        self.saved = -1
        """Step of the newest save that was begun or loaded; -1 = none."""
        self.spool, secret = self._find_spool()
        self._ring = None
        if self.spec.partner and self.spec.two_stage:
            self._ring = Ring(
                secret=secret, node=self.node, listen=address_towards(_meeting_host(recipe, task)),
                replica=recipe.layout.coord(self.mesh.rank).dp,
            )  # fmt: skip
        self._two: TwoStage | None = None
        self._warming: threading.Thread | None = None
        self._held_s = 0.0
        self._backlog = Backlog(self.spec.deadline_s)
        self._cautioned = False
        self._value: float | None = None

    # -- start

    def resume(self, wish: str) -> int:
        """Fill the state from the newest snapshot or checkpoint; returns the first step to do.

        wish  `auto`, `never` or a step number. Called by all ranks together.
        """
        if self._attempt == 0 and self.spec.path:
            agree(self.gather, self._check_store)
        in_memory = wish == "auto" and self.spec.two_stage
        meta = self._from_memory(self._begun_step) if in_memory else None
        if meta is None:
            finish_together(
                self.spool, lead=self._lead, gather=self.gather, timeout_s=self.spec.deadline_s
            )
            if in_memory:  # what was begun in the store may have lost a part with a node
                meta = self._from_memory(self._committed_step)
        if meta is None:
            meta = self._from_store(wish)
        if meta is not None:
            loaded(self.engine)
            self.saved = meta.step
        if self.spec.two_stage:
            self._two = self._open_two_stage()
        return meta.step if meta else 0

    def _from_memory(self, newest: Callable[[], bytes]) -> CheckpointMeta | None:
        """The newest snapshot that all ranks have, unless the store has a newer checkpoint."""
        if self._ring:
            bring_copies(
                self.spool, self._ring, rank=self.mesh.rank, lead=self._lead, gather=self.gather
            )
        meta = load_from_memory(
            self.root, pieces_to_save(self.engine), gather=self.gather, spool=self.spool,
            at_least=int(agree(self.gather, newest)[0]),
        )  # fmt: skip
        if meta is not None:
            share_copies(self.engine)
            if self.mesh.rank == 0:
                logger.info("resumed from step %d, which was still in memory", meta.step)
        return meta

    def _begun_step(self) -> bytes:
        """The newest step that has a folder in the store: it may still be completed."""
        return self._newest_step("")

    def _committed_step(self) -> bytes:
        """The newest step that is whole in the store, by its marker alone."""
        return self._newest_step(COMMITTED)

    def _newest_step(self, marker: str) -> bytes:
        if self.mesh.rank:
            return b""
        try:
            store = open_store(self.root)
            named = ((parse_folder(name), name) for name in store.folders())
            for parsed, name in sorted((p, name) for p, name in named if p)[::-1]:
                if marker and store.get(f"{name}/{marker}", MARKER_LIMIT) is None:
                    continue
                if store.get(f"{name}/{ABANDONED}", _MARK_BYTES) is None:
                    return str(parsed[0]).encode()
        except EngineError as error:
            logger.warning("the store does not answer: %s", error.what)
        return b"0"

    def _from_store(self, wish: str) -> CheckpointMeta | None:
        def choose() -> bytes:
            if self.mesh.rank:
                return b""
            own = Own(self.folder.name, self._mark, is_new=self._is_new) if self.spec.path else None
            found = checkpoint_to_resume(self.root, wish, recipe=self.recipe, own=own)
            return (found or "").encode()

        found = agree(self.gather, choose)[0].decode()
        if not found:
            return None
        pieces = pieces_to_load(self.engine)
        meta = load_checkpoint(found, pieces, gather=self.gather, share=self._share())
        if wish.isdigit():
            self._leave_branch(found)
        if self.mesh.rank == 0:
            logger.info("resumed from step %d of %s", meta.step, found)
        return meta

    def _leave_branch(self, found: str) -> None:
        """A person went back to a step: what came after it must not come back by itself."""
        if self.spool.is_dir():
            spool = Spool(self.spool)
            for slot in range(SLOTS):
                spool.write_ticket(self.mesh.rank, slot, None)
            if self._lead:
                shutil.rmtree(self.spool / PEERS, ignore_errors=True)
        if self.mesh.rank == 0:
            root, name = split(found)
            later = begin_branch(open_store(root), name)
            logger.info("resumed from %s; passed over from now on: %s", name, ", ".join(later))
        self.gather(b"")

    def _check_store(self) -> bytes:
        """Write something small where checkpoints go, before hours of training rely on it."""
        if self.mesh.rank == 0:
            store, name = open_store(self.root), f".writable-{os.urandom(6).hex()}"
            store.put(name, [memoryview(b"\n")])
            with contextlib.suppress(EngineError):  # may be left: some stores let nobody delete
                store.remove([name])
        return b""

    def _share(self) -> Share | None:
        """Replicas that hold the same pieces, so that each byte is read once."""
        group = self.mesh.dp_gather
        if self.recipe.layout.zero or group.size == 1:
            return None
        device = self.engine.stage.device

        def tell(data: npt.NDArray[np.uint8], source: int) -> None:
            host = torch.from_numpy(data)
            there = host.to(device)
            broadcast(there, source, group).wait()
            if there is not host:
                host.copy_(there)

        return Share(group.index, group.size, tell)

    def _open_two_stage(self) -> TwoStage | None:
        options = FlushOptions(
            bytes_per_s=self.spec.rate_mib_s * (1 << 20),
            log=str((self.folder / "log" / f"flusher-{self.node}.log").absolute()),
        )
        try:
            return TwoStage(
                self.root, pieces_to_save(self.engine), rank=self.mesh.rank,
                world=self.mesh.layout.world_size, gather=self.gather, spool=self.spool,
                options=options, ring=self._ring, keep=self.spec.keep, drain_s=self.spec.deadline_s,
            )  # fmt: skip
        except MissingError as error:
            logger.warning(
                "%s; training waits for each save instead (%s)", error.what, error.remedy
            )
            return None

    # -- steps

    def due(
        self, done: int, loss: float, value: float | None, *, stopping: bool = False
    ) -> str:  # fmt: skip
        """Why to save after `done` updates, empty if not; called by all ranks after each step."""
        self._look()
        if self._two and self._warming is None:
            # Not before the first step has ended: fresh memory takes time that the start has not.
            self._warming = threading.Thread(target=self._warm, name="checkpoint memory")
            self._warming.start()
        self._value = value if value is not None else self._value
        asked = self._asked(done)
        why = "request" if stopping else ""
        return self.policy.reason(done, loss, asked=asked) or why

    def settle(self) -> None:
        """Wait until the snapshot under way is whole: the state may change afterwards."""
        if self._two is None or not self._two.is_under_way:
            return
        with self.events.span("checkpoint"):
            waited = self._two.finish()
        self.policy.stalled(self._held_s + waited)

    def _warm(self) -> None:
        assert self._two is not None, "only a two-stage saver has memory"
        try:
            self._two.prepare()
        except (OSError, EngineError) as error:
            logger.warning("checkpoint memory: %s", error)  # the first save tries again and says so

    def _asked(self, done: int) -> bool:
        """Whether rank 0's clock asks for a save, where the clock has a say."""
        if not self.policy.is_look_due(done):
            return False
        mine = msgspec.json.encode((self.policy.wish(), self.policy.next_look(done)))
        first = self.gather(mine)[0]
        assert isinstance(first, bytes), "gather returns what it was given"
        wish, look = msgspec.json.decode(first, type=tuple[bool, int])
        self.policy.look_at(look)
        return wish

    def begin(self, done: int, loss: float, why: str) -> None:
        """Save the state after `done` updates, once."""
        if self.saved == done:
            return
        self.policy.saving()
        with self.events.span("checkpoint"):
            if self._two is None:
                self._save_in_step(self._meta(done, loss, why))
                self.saved = done
                return
            if self._warming:
                self._warming.join()
            taken = self._two.begin(pieces_to_save(self.engine), self._meta(done, loss, why))
        self._held_s = taken.seconds
        if taken.folder:
            self.saved = done
            self._backlog.begin(done, time.monotonic(), dropped=taken.dropped_step)

    def _save_in_step(self, meta: CheckpointMeta) -> None:
        start = time.monotonic()
        mesh = self.mesh
        try:
            save_checkpoint(
                self.root, pieces_to_save(self.engine), meta=meta, rank=mesh.rank,
                world=mesh.layout.world_size, gather=self.gather,
                barrier=lambda: barrier(mesh.world),
            )  # fmt: skip
            if mesh.rank == 0:
                keep_newest(self.root, self.spec.keep)
        finally:
            self.policy.stalled(time.monotonic() - start)

    def _meta(self, done: int, loss: float, why: str) -> CheckpointMeta:
        extra: dict[str, object] = {"loss": loss, "why": why, "run_mark": self._mark}
        if self._value is not None:
            extra["val_loss"] = self._value
        return CheckpointMeta(
            step=done, recipe_toml=dump_recipe(self.recipe), layout=self.recipe.layout,
            data={"samples": done * self.recipe.batch.global_batch}, run=self.folder.name,
            extra=extra,
        )  # fmt: skip

    def _look(self) -> None:
        """Note what the flusher has committed, and say so if it takes too long (rank 0)."""
        backlog = self._backlog
        if self._two is None or self.mesh.rank or not backlog:
            return
        status, now = self._two.status(), time.monotonic()
        if status.caution and not self._cautioned:
            self._cautioned = True
            logger.warning("%s", status.caution)
        # After failures a newer step may be committed before an older one: idle means all are.
        limit = backlog.newest if self._two.is_idle() else status.committed_step
        for step, took in backlog.arrive(limit, now):
            if step == limit:
                self.policy.flushed(took)
                logger.info("step %d is in the store after %.1f s", step, took)
        if late := backlog.complaint(now):
            logger.warning(
                "step %d is not in the store after %.0f s%s: %s", late.step, late.seconds,
                f" and {late.dropped} saves that gave way" if late.dropped else "",
                status.error or f"{status.done_bytes} of {status.total_bytes} bytes are written",
            )  # fmt: skip

    # -- end

    def end(self, done: int, loss: float, *, save: bool) -> None:
        """Save the last state if asked to, and return when all saves are durable.

        Raises CheckpointError if the store did not take them in time; they stay in memory then.
        """
        self.settle()
        self.events.step = -1  # what follows is part of no step
        with self.events.span("finish"):
            self._finish(done, loss, save=save)

    def _finish(self, done: int, loss: float, *, save: bool) -> None:
        if save and self._two is None:
            self.begin(done, loss, "end")
        if self._two is None:
            return
        if self._warming:
            self._warming.join()
        deadline = time.monotonic() + self.spec.deadline_s
        while save and self.saved != done:
            self.begin(done, loss, "end")
            self._two.finish()
            if self.saved != done:
                self._wait(done, deadline, enough=_ROUND_S / 10)
        self._wait(done, deadline)
        self._two.close()

    def _wait(self, done: int, deadline: float, *, enough: float = 0.0) -> None:
        """Until nothing waits on any node, or `enough` seconds; all ranks together."""
        assert self._two is not None, "only a two-stage saver leaves something to wait for"
        began = time.monotonic()
        while True:
            idle = self._two.wait(min(enough or _ROUND_S, max(0.0, deadline - time.monotonic())))
            mine = msgspec.json.encode((idle, time.monotonic() > deadline))
            every = [
                msgspec.json.decode(item, type=tuple[bool, bool])
                for item in self.gather(mine)
                if isinstance(item, bytes)
            ]
            if all(is_idle for is_idle, _ in every):
                break
            if any(late for _, late in every):
                why = self._two.status().error or "the store is slow"
                raise CheckpointError(
                    f"step {done} is in memory but not in {self.root} after "
                    f"{self.spec.deadline_s:.0f} s: {why}",
                    remedy="a process in the background goes on trying; `msctl train` with the "
                    "same --run folder waits for it, or raise checkpoint.deadline_s",
                )
            if enough:
                return
        if self.mesh.rank == 0 and self._backlog:
            logger.info("all saves are durable after %.1f s more", time.monotonic() - began)
        self._backlog.clear()

    # -- help

    def gather(self, value: object) -> list[object]:
        """The form in which the checkpoint room exchanges encoded bytes."""
        assert isinstance(value, bytes), "checkpoint rooms exchange encoded bytes"
        if self.events.step >= 0:  # part of the step's own span
            return list(gather_bytes(value, self.mesh.world))
        with self.events.span("wait", on="world"):
            return list(gather_bytes(value, self.mesh.world))

    def _find_spool(self) -> tuple[Path, str]:
        """Memory of this run on this node, and the run's secret.

        Also finds out whether this rank speaks for the node.
        """
        name = run_identity(self.folder) if self.mesh.rank == 0 else ""
        every = [
            msgspec.json.decode(item, type=tuple[str, str])
            for item in self.gather(msgspec.json.encode((name, self.node)))
            if isinstance(item, bytes)
        ]
        self._lead = [node for _, node in every].index(self.node) == self.mesh.rank
        base = self._memory
        self._mark = run_mark(every[0][0])
        return spool_folder(f"{self.root}#{every[0][0]}", self.node, base=base), every[0][0]
