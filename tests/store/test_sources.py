"""Sources of stores other than local files: streams of Arrow, URIs and patterns, and a server of S3."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest

from groupdro.store import GroupedStore

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
ds = pytest.importorskip("pyarrow.dataset")
fs = pytest.importorskip("pyarrow.fs")
pq = pytest.importorskip("pyarrow.parquet")

N = 500
RNG = np.random.default_rng(5)
TABLE = pa.table(
    {
        "x0": RNG.normal(size=N).astype(np.float32),
        "x1": RNG.integers(0, 9, N),
        "group": RNG.choice(["north", "south", "west"], N),
        "y": RNG.integers(0, 2, N),
    }
)


def write(path, source, **options):
    return GroupedStore.write(path, source, target="y", groups="group", **options)


def content(store):
    return {file.name: file.read_bytes() for file in store.path.iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return content(write(tmp_path_factory.mktemp("expected") / "s", TABLE))


# ---------------------------------------------------------------------- streams


class Stream:
    """Streams its rows once, as a reader of any library does, and counts."""

    def __init__(self, table, most_rows=70):
        self.reader = table.to_reader(most_rows)
        self.n_streams = 0

    def __arrow_c_stream__(self, requested_schema=None):
        self.n_streams += 1
        return self.reader.__arrow_c_stream__(requested_schema)


class Again(Stream):
    """Streams its rows as often as asked, and has a length."""

    def __init__(self, table):
        self.table = table
        self.n_streams = 0

    def __len__(self):
        return len(self.table)

    def __arrow_c_stream__(self, requested_schema=None):
        self.reader = self.table.to_reader(70)
        return super().__arrow_c_stream__(requested_schema)


STREAMS = {
    "polars": pl.from_arrow,
    "polars categorical": lambda table: pl.from_arrow(table).with_columns(pl.col("group").cast(pl.Categorical)),
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(70),
    "scanner": lambda table: ds.dataset(table).scanner(),
    "scanner of a reader": lambda table: ds.Scanner.from_batches(table.to_reader(70)),
    "stream": Stream,
    "table": Again,
}


@pytest.mark.parametrize("memory", [2**28, 20_000])
@pytest.mark.parametrize("kind", STREAMS)
def test_every_stream_gives_the_same_bytes_and_leaves_nothing_else(tmp_path, expected, kind, memory):
    store = write(tmp_path / "s", STREAMS[kind](TABLE), memory=memory)
    assert content(store) == expected
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.skipif(not hasattr(pd.DataFrame, "__arrow_c_stream__"), reason="this pandas does not stream Arrow")
def test_a_frame_of_pandas_is_a_stream(tmp_path, expected):
    assert content(write(tmp_path / "s", TABLE.to_pandas())) == expected


@pytest.mark.parametrize("memory", [2**28, 20_000])
def test_a_relation_of_duckdb_is_a_stream(tmp_path, expected, memory):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("visits", TABLE)
        relation = connection.sql('SELECT x0, x1, "group", y FROM visits')
        assert content(write(tmp_path / "s", relation, memory=memory)) == expected


def test_what_has_a_length_is_streamed_twice_and_a_reader_once(tmp_path, expected):
    once, again = Stream(TABLE), Again(TABLE)
    write(tmp_path / "once", once)
    write(tmp_path / "again", again)
    assert (once.n_streams, again.n_streams) == (1, 2)


def test_a_reader_may_change_its_dictionaries(tmp_path):
    words = [["a", "b"], ["b", "c", "d"]]
    batches = [
        pa.record_batch({"x": np.arange(len(some), dtype=float), "g": pa.array(some).dictionary_encode(), "y": some})
        for some in words
    ]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    store = GroupedStore.write(tmp_path / "s", reader, target="y", groups="g")
    assert store.names == ("a", "b", "c", "d")
    assert store.group_sizes.tolist() == [1, 2, 1, 1]
    assert store.X[np.argsort(store.source), 0].tolist() == [0, 1, 0, 1, 2]


def test_only_the_columns_that_are_needed_are_kept_on_disk(tmp_path):
    sizes = []

    def batches():
        for batch in TABLE.append_column("long", pa.array(["word" * 1000] * N)).to_batches(max_chunksize=100):
            sizes.extend(file.stat().st_size for file in tmp_path.glob(".s.*/source.tmp"))
            yield batch

    schema = TABLE.append_column("long", pa.array([""] * N)).schema
    write(tmp_path / "s", pa.RecordBatchReader.from_batches(schema, batches()), drop="long")
    assert 1000 < max(sizes) < 40 * N  # one of the dropped column takes 4000 bytes


def test_a_reader_that_was_read_is_refused(tmp_path):
    reader = TABLE.to_reader()
    reader.read_all()
    with pytest.raises(ValueError, match=r"source has no rows; if it is a reader, .* open it again"):
        write(tmp_path / "s", reader)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_was_refused_has_lost_no_rows(tmp_path, expected):
    reader = TABLE.to_reader()
    with pytest.raises(ValueError, match="target names the column 'nope'"):
        GroupedStore.write(tmp_path / "s", reader, target="nope", groups="group")
    assert content(write(tmp_path / "s", reader)) == expected


@pytest.mark.parametrize("error", [ValueError("broken"), OSError("no network")])
def test_a_reader_that_breaks_leaves_nothing(tmp_path, error):
    def batches():
        yield from TABLE.slice(0, 200).to_batches()
        raise error

    with pytest.raises(type(error)):
        write(tmp_path / "s", pa.RecordBatchReader.from_batches(TABLE.schema, batches()))
    assert list(tmp_path.iterdir()) == []


def test_what_streams_no_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"source: .*non-struct type"):
        write(tmp_path / "s", pl.Series([1, 2]))
    with pytest.raises(ValueError, match="filesystem is for a source of paths"):
        write(tmp_path / "s", TABLE, filesystem=fs.LocalFileSystem())


MEMORY_SCRIPT = """
import sys
import numpy as np
import pyarrow as pa
from groupdro.store import GroupedStore

def peak():  # of this program alone: ru_maxrss begins at that of the process that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

names = [f"x{j}" for j in range(100)]
values = np.random.default_rng(0).normal(size=(100, 10_000)).astype(np.float32)
batch = pa.record_batch([*values, values[0], np.arange(10_000) % 7], [*names, "y", "g"])
before = peak()
reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(50)))
store = GroupedStore.write(sys.argv[1], reader, target="y", groups="g", memory=32 * 2**20)
print(store.nbytes >> 20, (peak() - before) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak in units of Linux")
def test_a_reader_takes_about_the_memory_it_was_given(tmp_path):
    arguments = [sys.executable, "-c", MEMORY_SCRIPT, str(tmp_path / "s")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    size, peak = map(int, done.stdout.split())
    assert size > 190
    assert peak < 130


# ---------------------------------------------------------------------- columns


def test_dropped_columns_are_no_features(tmp_path):
    assert write(tmp_path / "a", TABLE, drop="x1").feature_names == ("x0",)
    assert write(tmp_path / "b", TABLE, drop=["x0", "group"]).feature_names == ("x1",)
    assert write(tmp_path / "c", TABLE, features=["x1", "x0"], drop=("x1",)).feature_names == ("x0",)
    assert write(tmp_path / "d", TABLE, drop=[]).feature_names == ("x0", "x1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ["x0", "x1"]}, "source has no columns left for the features"),
        ({"features": ["x0"], "drop": "x0"}, "drop leaves out all features"),
        ({"drop": "nope"}, "drop names the column 'nope', which is not in source"),
        ({"drop": 3}, "drop must be the name of a column"),
    ],
)
def test_columns_that_cannot_be_dropped_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "s", TABLE, **options)


# ---------------------------------------------------------------------- places of files


def save(folder, system=None):
    """Save the table as Parquet in two files, each in a folder of its own, and as CSV."""
    system = system or fs.LocalFileSystem()
    for k, start in enumerate((0, 200)):
        system.create_dir(f"{folder}/part={k}")
        part = TABLE.slice(start, 200 if start == 0 else N)
        pq.write_table(part, f"{folder}/part={k}/rows-{k}.parquet", filesystem=system, row_group_size=90)
    with system.open_output_stream(f"{folder}/all.csv") as file:
        csv.write_csv(TABLE, file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("files")
    save(place)
    return place


PATTERNS = ["*/rows-*.parquet", "part=[01]/*", "**/*.parquet", "part=*/rows-?.parquet", "**/part=*/**/*.parquet"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_files_are_found_by_patterns(tmp_path, monkeypatch, folder, expected, pattern):
    assert content(write(tmp_path / "absolute", folder / pattern)) == expected
    monkeypatch.chdir(folder)
    assert content(write(tmp_path / "relative", pattern)) == expected
    assert (
        content(write(tmp_path / "given", pattern, filesystem=fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())))
        == expected
    )


@pytest.mark.parametrize("name", ["part=*/*.parquet", "**/rows-*", "all.csv"])
def test_files_are_found_by_uris(tmp_path, folder, expected, name):
    assert content(write(tmp_path / "s", f"{folder.as_uri()}/{name}")) == expected


def test_a_list_may_mix_paths_uris_and_patterns(tmp_path, folder, expected):
    source = [folder / "part=0" / "*.parquet", f"{folder.as_uri()}/part=1/rows-1.parquet"]
    assert content(write(tmp_path / "s", source)) == expected


def test_a_directory_may_be_a_uri(tmp_path, folder):
    place = tmp_path / "tables"
    for k in range(2):
        (place / f"part={k}").mkdir(parents=True)
        (place / f"part={k}" / "rows.parquet").write_bytes((folder / f"part={k}" / f"rows-{k}.parquet").read_bytes())
    assert write(tmp_path / "s", f"{place.as_uri()}/").feature_names == ("x0", "x1", "part")


def test_a_file_system_of_fsspec_is_one(tmp_path, folder, expected):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for k in range(2):
        memory.pipe(f"/sources/rows-{k}.parquet", (folder / f"part={k}" / f"rows-{k}.parquet").read_bytes())
    assert content(write(tmp_path / "s", "/sources/*.parquet", filesystem=memory)) == expected
    files = [f"/sources/rows-{k}.parquet" for k in range(2)]
    assert content(write(tmp_path / "list", files, filesystem=memory)) == expected


def test_names_that_look_like_patterns_are_names(tmp_path):
    pq.write_table(TABLE.slice(0, 100), tmp_path / "rows[1].parquet")
    pq.write_table(TABLE, tmp_path / "rows1.parquet")
    assert len(write(tmp_path / "s", tmp_path / "rows[1].parquet")) == 100


def test_hidden_files_match_only_patterns_that_say_so(tmp_path):
    pq.write_table(TABLE, tmp_path / ".rows.parquet")
    (tmp_path / ".parts").mkdir()
    pq.write_table(TABLE, tmp_path / ".parts" / "rows.parquet")
    for pattern in ("*.parquet", "**/*.parquet"):
        with pytest.raises(FileNotFoundError, match="matches no file"):
            write(tmp_path / "s", tmp_path / pattern)
    assert len(write(tmp_path / "s", tmp_path / ".rows*")) == N


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("nope://bucket/rows.parquet", ValueError, "source 'nope://bucket/rows.parquet' is a URI that pyarrow cannot"),
        ("https://example.org/rows.parquet", ValueError, "pass paths and the argument filesystem"),
        ("nope://key:secret@bucket/rows.parquet", ValueError, r"source 'nope://\*\*\*@bucket/rows.parquet'"),
        ("file:///missing/rows.parquet", FileNotFoundError, "source 'file:///missing/rows.parquet' does not exist"),
        ("file:///missing/*.parquet", FileNotFoundError, r"source 'file:///missing/\*.parquet' matches no file"),
        ("missing/*.parquet", FileNotFoundError, r"source 'missing/\*.parquet' matches no file"),
    ],
)
def test_places_without_files_are_refused(tmp_path, source, error, message):
    with pytest.raises(error, match=message) as refused:
        write(tmp_path / "s", source)
    assert "secret" not in str(refused.value)


def test_file_systems_that_do_not_fit_are_refused(tmp_path, folder):
    with pytest.raises(ValueError, match="is a URI, which has a file system of its own"):
        write(tmp_path / "s", f"{folder.as_uri()}/all.csv", filesystem=fs.LocalFileSystem())
    with pytest.raises(TypeError, match="filesystem must be one of pyarrow or fsspec, got str"):
        write(tmp_path / "s", str(folder / "all.csv*"), filesystem="s3")


def test_a_server_that_cannot_be_reached_is_named(tmp_path):
    with pytest.raises(OSError, match=r"source 's3://bucket/all.csv\?.*' cannot be read: .*NETWORK_CONNECTION"):
        write(tmp_path / "s", f"s3://bucket/all.csv?region=us-east-1&endpoint_override=127.0.0.1:{free_port()}")


# ---------------------------------------------------------------------- S3


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """Run a server of S3, with the table in the bucket "tables"."""
    for name in ("moto", "flask", "flask_cors"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    port = free_port()
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, log.read_text()
                time.sleep(0.1)
        options = f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
        system = fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            region="us-east-1",
            allow_bucket_creation=True,
            connect_timeout=5,
            request_timeout=30,
        )
        system.create_dir("tables")
        save("tables/visits", system)
        yield SimpleNamespace(options=options, system=system, log=log)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture
def credentials(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.mark.parametrize("name", ["visits/part=*/*.parquet", "visits/**/*.parquet", "visits/all.csv", "*/all.csv"])
def test_a_bucket_is_read_by_uri(tmp_path, s3, credentials, expected, name):
    assert content(write(tmp_path / "s", f"s3://tables/{name}?{s3.options}")) == expected


def test_a_bucket_is_read_by_file_system(tmp_path, s3, expected):
    store = write(tmp_path / "s", "tables/visits/**/*.parquet", filesystem=s3.system)
    assert content(store) == expected
    files = [f"tables/visits/part={k}/rows-{k}.parquet" for k in range(2)]
    assert content(write(tmp_path / "list", files, filesystem=s3.system)) == expected
    assert content(write(tmp_path / "dataset", ds.dataset(files, filesystem=s3.system))) == expected


def test_a_store_is_read_again_after_an_interrupt(tmp_path, s3, monkeypatch, expected):
    parquet_file = pq.ParquetFile.iter_batches
    calls = []

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 4:  # the second file, the second time
            raise KeyboardInterrupt
        return parquet_file(self, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "s", "tables/visits/**/*.parquet", filesystem=s3.system)
    assert list(tmp_path.iterdir()) == []
    assert content(write(tmp_path / "s", "tables/visits/**/*.parquet", filesystem=s3.system)) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("elsewhere/visits/all.csv", "does not exist: there is no bucket 'elsewhere'"),
        ("elsewhere/visits/*.csv", "matches no file: there is no bucket 'elsewhere'"),
        ("tables/nope.csv", r"nope.csv\?.*' does not exist\."),
        ("tables/visits/*.nope", r"' matches no file\."),
    ],
)
def test_what_is_not_in_a_bucket_is_refused(tmp_path, s3, credentials, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        write(tmp_path / "s", f"s3://{name}?{s3.options}")


def test_files_on_several_file_systems_are_refused(tmp_path, s3, credentials, folder):
    with pytest.raises(ValueError, match="on several"):
        write(tmp_path / "s", [folder / "all.csv", f"s3://tables/visits/all.csv?{s3.options}"])


def test_keys_in_a_uri_are_not_shown(tmp_path, s3):
    with pytest.raises(FileNotFoundError) as refused:
        write(tmp_path / "s", f"s3://key:hidden@tables/nope.csv?{s3.options}")
    assert "hidden" not in str(refused.value)
