"""
Fit a classifier on a store, with one or several workers
========================================================

One process; two processes that survive the loss of one; two processes with MPI:

    python examples/train_on_many_workers.py STORE MODEL
    torchrun --standalone --nproc-per-node=2 --max-restarts=3 \\
        examples/train_on_many_workers.py STORE MODEL FOLDER
    mpirun -n 2 python -m mpi4py examples/train_on_many_workers.py STORE MODEL

Every worker opens the same store and holds a part of its rows. All end with the same
model, and the first one saves it. With a FOLDER for checkpoints that all workers see,
an interrupted job resumes where it was.
"""

import sys

import joblib

import groupdro as gd


def train(store, model_file, checkpoint_dir=None, *, callbacks=None, **options):
    """Fit and save a classifier, as one of the workers or alone."""
    options = {"alpha": 1e-3, "tol": 1e-3, **options}
    with gd.distributed.communicator() as comm:
        model = gd.GroupDROClassifier(
            random_state=0,
            checkpoint_dir=checkpoint_dir,
            callbacks=callbacks,
            **options,
        )
        model.fit(gd.GroupedStore.open(store).shard(comm))
        if comm.rank == 0:
            joblib.dump(model.set_params(callbacks=None), model_file)
            print(f"{model.status_}: worst group {model.worst_group_!r}", end=", ")
            print(f"gap {model.gap_:.2g}, {comm.size} workers")
        comm.barrier()
    return model


if __name__ == "__main__":
    train(*sys.argv[1:])
