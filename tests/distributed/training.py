"""One worker of a job that faults are injected into: python training.py SETTINGS.

It writes down what it does, and stands still for a while at the moments that the settings name, so that a fault can
come from outside just then.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path


def read_settings():
    return json.loads(Path(sys.argv[1]).read_text())


class Diary:
    """Events of this process, and the moments at which it stands still."""

    def __init__(self, settings):
        self.folder = Path(settings["folder"])
        self.holds, self.patience = settings["holds"], settings["patience"]
        self.rank = int(os.environ.get("RANK", "0"))
        self.epoch = 0  # the one that is being worked on
        self.seen = set()
        self.over = {hold["name"] for hold in self.holds if self._released(hold)}

    def _released(self, hold):
        return (self.folder / f"release-{hold['name']}").exists()

    def write(self, what, **more):
        line = json.dumps({"what": what, "rank": self.rank, "pid": os.getpid(), "at": time.monotonic(), **more})
        with (self.folder / f"events-{os.getpid()}.jsonl").open("a") as file:
            file.write(f"{line}\n")

    def write_once(self, what):
        if what not in self.seen:
            self.seen.add(what)
            self.write(what)

    def hold(self, phase):
        """Stand still if this is the next moment of the list: each comes once in the life of the job."""
        for hold in self.holds:
            held = self.folder / f"held-{hold['name']}"
            if hold["name"] in self.over or (self._released(hold) and not hold["deadly"]):
                continue  # but a process that survived a fault is about to be ended, and stands for nothing more
            if held.exists() or phase != hold["phase"] or self.epoch < hold["epoch"]:
                return
            if hold["rank"] is not None and hold["rank"] != self.rank:
                return
            try:
                handle = os.open(held, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                return
            os.write(handle, json.dumps({"pid": os.getpid(), "rank": self.rank}).encode())
            os.close(handle)
            end = time.monotonic() + self.patience
            while time.monotonic() < end and not self._released(hold):
                time.sleep(0.01)
            return


def watch(diary):
    """Have the package say where it is: in a step, in a pass, in the writing of a checkpoint."""
    import types

    from groupdro.problem import GroupRisk
    from groupdro.run.checkpoint import Checkpoints
    from groupdro.utils import bundle

    in_step = []
    difference, latest, write = GroupRisk.sampled_difference, Checkpoints.latest, Checkpoints.write

    def sampled_difference(self, *arguments):
        in_step.append(True)
        try:
            out = difference(self, *arguments)
        finally:
            in_step.pop()
        diary.write_once("step")
        return out

    def watched_latest(self):
        found = latest(self)
        epoch = None if found is None else found[0]["trace"][-1][0]
        diary.write("resumed", epoch=epoch, generation=self.generation)
        diary.epoch = 0 if epoch is None else epoch + 1
        return found

    def watched_write(self, epoch, *arguments):
        write(self, epoch, *arguments)
        if (self.directory / f"checkpoint-{self.generation:06d}-{epoch:08d}.zip").exists():
            diary.write("saved", epoch=epoch)

    def fsync(handle):
        diary.hold("fsync")
        os.fsync(handle)

    def replace(source, target):
        diary.hold("rename")
        os.replace(source, target)
        diary.hold("renamed")

    GroupRisk.sampled_difference = sampled_difference
    Checkpoints.latest, Checkpoints.write = watched_latest, watched_write
    bundle.os = types.SimpleNamespace(**{**vars(os), "fsync": fsync, "replace": replace})
    return in_step


def main():
    settings = read_settings()
    diary = Diary(settings)
    diary.write("begun", restart=os.environ.get("TORCHELASTIC_RESTART_COUNT"), world=os.environ.get("WORLD_SIZE"))
    diary.hold("start")

    import numpy as np

    import groupdro as gd

    in_step = watch(diary)
    with gd.distributed.communicator(timeout=settings["timeout"]) as comm:
        diary.write("connected", size=comm.size)
        allreduce = comm.allreduce

        def watched_allreduce(array):
            diary.hold("step" if in_step else "pass")
            return allreduce(array)

        def after_epoch(progress):
            diary.write("epoch", epoch=progress.latest.epoch)
            diary.hold("between")
            time.sleep(settings["pause"])
            diary.epoch = progress.latest.epoch + 1

        store = gd.GroupedStore.open(settings["store"], verify=settings["verify"]).shard(comm)
        data = store.data(labels=(-1.0, 1.0))
        comm.allreduce = watched_allreduce
        problem = gd.GroupRisk(
            data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=settings["penalty"]), fit_intercept=True
        )
        solver = gd.solvers.GroupSQP("lbfgs") if settings["solver"] == "sqp" else settings["solver"]
        result = gd.solve(
            problem, solver, tol=settings["tol"], max_passes=1000.0, callbacks=[after_epoch],
            checkpoint_dir=settings["checkpoints"],
        )  # fmt: skip
        diary.write("solved", digest=hashlib.sha256(result.w.tobytes() + result.q.tobytes()).hexdigest())
        if comm.rank == 0:
            folder = Path(settings["folder"])
            np.savez(folder / "solution.npz", w=result.w, q=result.q)
            about = {"status": result.status.name, "upper": result.upper_bound, "lower": result.lower_bound}
            unfinished = folder / "result.unfinished"
            unfinished.write_text(json.dumps({**about, "epochs": result.epochs, "workers": comm.size}))
            unfinished.rename(folder / "result.json")
        comm.barrier()


if __name__ == "__main__":
    main()
