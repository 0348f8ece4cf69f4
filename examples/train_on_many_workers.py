"""Fit a classifier on a store, alone or on as many workers as the program is started with.

    python examples/train_on_many_workers.py STORE MODEL                                 one process
    groupdro launch --workers 2 examples/train_on_many_workers.py STORE MODEL CHECKPOINTS    two; survives a loss
    mpirun -n 2 python -m mpi4py examples/train_on_many_workers.py STORE MODEL           two, by MPI

Every worker opens the same store and holds a part of its rows; all end with the same model, and the first one saves it.
With a directory of checkpoints that all workers see, a job that was broken off goes on where it was.
"""

import sys

import groupdro as gd


def train(store, model_file, checkpoint_dir=None, *, alpha=1e-3, tol=1e-3, solver="auto", callbacks=None):
    """Fit and save a classifier, as one of the workers or alone."""
    with gd.distributed.communicator() as comm:
        model = gd.GroupDROClassifier(
            alpha=alpha, tol=tol, solver=solver, random_state=0, checkpoint_dir=checkpoint_dir, callbacks=callbacks
        )
        model.fit(gd.GroupedStore.open(store).shard(comm))
        if comm.rank == 0:
            model.save(model_file)
            print(f"{model.status_}: worst group {model.worst_group_!r}, gap {model.gap_:.2g}, {comm.size} workers")
        comm.barrier()
    return model


if __name__ == "__main__":
    train(*sys.argv[1:])
