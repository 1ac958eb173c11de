"""The loop around the step: batches, validation, checkpoints, metrics, and when to end."""

import logging
import math
import os
from pathlib import Path

import torch

from engine.comm.collectives import barrier
from engine.data.loader import Loader, open_loaders
from engine.data.node_loader import NodeLoader, open_node_loaders
from engine.device import DTYPES, Device
from engine.model.transformer import MicroBatch
from engine.spec.presets import DEVICES
from engine.train.collect import Collector
from engine.train.metrics import MetricsWriter, StepMetrics
from engine.train.saving import Saver
from engine.train.sdc import ReplicaCheck
from engine.train.task import RankTask
from engine.train.trainer import StepResult, Trainer
from engine.train.watchdog import Watchdog

logger = logging.getLogger(__name__)


class Loop:
    """Everything a rank does from its first step to its last."""

    def __init__(self, trainer: Trainer, device: Device, folder: Path, task: RankTask) -> None:
        self.trainer, self.device, self.folder, self.task = trainer, device, folder, task
        self.recipe = trainer.recipe
        self.mesh = trainer.engine.mesh
        replica = self.mesh.layout.coord(self.mesh.rank).dp
        self.train: Loader | NodeLoader
        self.validation: Loader | NodeLoader | None
        if task.loader:
            self.train, self.validation = open_node_loaders(
                self.recipe, task.loader, replica=replica
            )
        else:
            self.train, self.validation = open_loaders(self.recipe, replica=replica)
        self._stop = False
        self.saver = Saver(trainer.engine, self.recipe, folder, trainer.events, task)
        trainer.before_update = self.saver.settle
        compares = bool(self.recipe.job.sdc_every)
        self._replicas = ReplicaCheck(self.recipe, trainer.engine) if compares else None
        self._micro: MicroBatch | None = None
        """One of the newest step, for comparing replicas."""

    def ask_to_stop(self) -> None:
        """End after the current step, with a checkpoint (called by a signal handler)."""
        self._stop = True

    def run(self) -> None:
        """Train until the recipe's last step, this invocation's limit, or a request to stop."""
        with self.trainer.events.span("start", phase="resume"):
            first = self.saver.resume(self.task.resume)
        last = self.recipe.train.steps
        if self.task.steps:
            last = min(last, first + self.task.steps)
        if self.task.until:
            last = min(last, self.task.until)
        peak = self._peak_flops_per_s()
        writer = self._open_metrics(first)
        events, limit = self.trainer.events, self.recipe.monitor.step_deadline_s
        done, stopped, loss = first, False, 0.0
        every = self.recipe.monitor.collect_every
        with (
            Collector(events, every=every) as collector,
            Watchdog(events, deadline_s=limit) as watchdog,
        ):
            for step in range(first, last):
                watchdog.beat()
                result = self.trainer.step(step, self._batches, stop=self._stop)
                done, stopped, loss = step + 1, result.stop, result.loss
                value = self._evaluate(done, is_last=done == last or result.stop)
                if writer is not None:
                    writer.write(self._metrics(result, value, peak))
                why = self.saver.due(done, result.loss, value, stopping=result.stop)
                self._compare_replicas(done, saves=bool(why))
                if why:
                    self.saver.begin(done, result.loss, why)
                collector.between_steps(done)
                if result.stop:
                    logger.info("stopped on request after step %d", done)
                    break
        wanted = (stopped or self.recipe.checkpoint.at_end) and done > first
        if wanted:
            self._compare_replicas(done, saves=True)
        self.saver.end(done, loss, save=wanted)
        if writer is not None:
            writer.close()

    def _batches(self, step: int) -> list[MicroBatch]:
        micro = _micro_batches(self.train, step, self.device.torch_device)
        if self._replicas is not None:
            tokens, targets, samples, _ = micro[0]  # a loader may use its memory again
            self._micro = MicroBatch(tokens.clone(), targets.clone(), samples.clone(), step)
        return micro

    def _compare_replicas(self, done: int, *, saves: bool) -> None:
        """Look for silent data corruption when it is time to."""
        check = self._replicas
        if check is not None and self._micro is not None and check.is_due(done, saves=saves):
            check.run(done, self._micro)

    def _evaluate(self, done: int, *, is_last: bool) -> float | None:
        """Held-out loss in nats per token, when it is due."""
        every = self.recipe.train.eval_every
        if self.validation is None or not (is_last or (every and done % every == 0)):
            return None
        batches = [
            _micro_batches(self.validation, i, self.device.torch_device)
            for i in range(self.validation.steps_per_epoch)
        ]
        return self.trainer.evaluate(batches)

    def _open_metrics(self, first: int) -> MetricsWriter | None:
        if self.mesh.rank:
            return None
        board = self.recipe.monitor.tensorboard
        return MetricsWriter(self.folder, tensorboard=board, from_step=first)

    def _metrics(self, result: StepResult, value: float | None, peak: float) -> StepMetrics:
        tokens = self.trainer.tokens_per_step
        rate = tokens / result.step_s
        per_byte = None
        tokens_per_byte = self.validation.tokens_per_byte if self.validation else None
        if value is not None and tokens_per_byte is not None:
            per_byte = value * tokens_per_byte
        return StepMetrics(
            step=result.step + 1, loss=_finite(result.loss), lr=result.lr,
            grad_norm=_finite(result.grad_norm), skipped=result.skipped,
            tokens=(result.step + 1) * tokens, tokens_per_s=rate, step_s=result.step_s,
            mfu=self.recipe.model.flops_per_token("window") * rate / peak,
            memory_bytes=self.device.memory_bytes(), val_loss=value, val_loss_per_byte=per_byte,
        )  # fmt: skip

    def _peak_flops_per_s(self) -> float:
        """Denominator of the job's MFU: data-sheet peak, or this node's measured GEMM rate."""
        name, precision = self.device.name(), self.recipe.train.precision
        for device in DEVICES.values():
            if device.name.split("-")[0] in name and precision in device.peak_flops_per_s:
                return device.peak_flops_per_s[precision] * self.mesh.layout.world_size
        rate = 0.0
        if self.mesh.rank == 0:
            rate = self.device.gemm_flops_per_s(DTYPES[precision]) / torch.get_num_threads()
        barrier(self.mesh.world)
        if self.device.backend == "gloo":
            return max(rate, 1.0) * (os.cpu_count() or 1)
        return max(rate, 1.0) * self.mesh.layout.world_size


def _finite(value: float) -> float:
    """JSON has no other numbers; only a step that was left out has one that is not finite."""
    return value if math.isfinite(value) else 0.0


def _micro_batches(
    loader: Loader | NodeLoader, step: int, device: torch.device
) -> list[MicroBatch]:
    return [
        MicroBatch(tokens.to(device), targets.to(device), samples.to(device), step)
        for tokens, targets, samples in loader.microbatches(step)
    ]
