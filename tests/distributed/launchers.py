"""The example on two workers of Ray Train or Spark: python launchers.py {ray,spark} EXAMPLE STORE FOLDER."""

import contextlib
import io
import os
import runpy
import sys
import tempfile
from pathlib import Path

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def train_and_tell(example, store, folder):
    """Train as one of the workers, and write what it printed and whether its launcher had initialised torch."""
    import torch.distributed as dist

    began = dist.is_initialized()
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model = runpy.run_path(example)["train"](store, os.path.join(folder, "model"))
    told = Path(folder, f"rank-{os.environ['RANK']}.txt")
    told.write_text(printed.getvalue())
    assert not missing, missing
    assert dist.is_initialized() == began  # the communicator leaves the program's group alone, and no other behind
    told.with_suffix(".coef").write_bytes(model.coef_.tobytes())


def run_by_ray(example, store, folder):
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    run_config = RunConfig(name="example", storage_path=os.path.join(folder, "ray"))
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # sockets are in it, whose paths have at most 107 bytes
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            _node_ip_address="127.0.0.1",
            _temp_dir=short,
        )
        try:
            TorchTrainer(
                lambda: train_and_tell(example, store, folder),
                scaling_config=ScalingConfig(num_workers=2),
                run_config=run_config,
            ).fit()
        finally:
            ray.shutdown()


def run_by_spark(example, store, folder):
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "512m").getOrCreate()
    try:
        distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
        distributor.run(train_and_tell, example, store, folder)
    finally:
        spark.stop()


if __name__ == "__main__":
    {"ray": run_by_ray, "spark": run_by_spark}[sys.argv[1]](*sys.argv[2:])
