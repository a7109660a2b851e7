"""Tables from where they are: a file, a folder of Parquet files, an object store, or the rows of a query.

A file of this machine is read in place. Everything else is read once, in the order of its ids, and kept as it was
then: in memory while it is small, else in a file without a name, which is gone with the process. A password never
stands in a job file, and is never printed.
"""

from __future__ import annotations

import importlib
import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.fs
import pyarrow.types

from thinwire.base.errors import BadFile, BadIds, BadInput, BadTable
from thinwire.base.format import quote_names
from thinwire.data.readers.files import require_file
from thinwire.data.readers.large_table import COPY_IN_MEMORY, RisingKey, copy_rows
from thinwire.data.readers.tables import StoredTable
from thinwire.engine.streams import Storage

_FETCH_ROWS = 16_384
_SORT_MEMORY = "1GB"

_SECRET = re.compile(r"(?i)\b(password|passwd|pwd|secret\w*|token|access_key)\s*=")
_NO_SECRETS = (
    "holds a password, and job files are copied and kept: leave it out and set PGPASSWORD or ~/.pgpass (PostgreSQL), "
    'AWS_SECRET_ACCESS_KEY or ~/.aws (S3); or let an environment variable hold the address: connection = "$NAME"'
)
_EXTRA = "it comes with `pip install 'thinwire[sql]'`"


def require_no_secret(address: str) -> None:
    """Refuses an address with a password in it, without printing it."""
    if _SECRET.search(address) or ("://" in address and "@" in address and ":" in _user_part(address)):
        raise BadInput(_NO_SECRETS)


def _user_part(address: str) -> str:
    return address.partition("://")[2].rpartition("@")[0]


def is_remote(file: str) -> bool:
    """Is it the address of an object store, and no path?"""
    return re.match(r"[a-z][a-z0-9+.-]+://", file) is not None


@dataclass(frozen=True)
class TableOrigin:
    """Where a table is: a path or an address, or a query and the database that answers it."""

    folder: Path  # where paths start from
    file: str | None = None
    sql: str | None = None
    connection: str | None = None

    def __str__(self) -> str:
        if self.sql is None:
            return str(self.file if is_remote(self.file or "") else self.path)
        text = " ".join(self.sql.split())
        return f"{self.connection} ({text if len(text) <= 60 else f'{text[:57]}...'})"

    @property
    def path(self) -> Path:
        """Of a file or folder of this machine."""
        return self.folder / str(self.file)

    @property
    def is_local_file(self) -> bool:
        return self.sql is None and not is_remote(str(self.file)) and not self.path.is_dir()

    @property
    def suffix(self) -> str:
        """By which it is read; a table of stored types where it is no single file."""
        return self.path.suffix.lower() if self.is_local_file else StoredTable.suffix

    def is_same(self, other: TableOrigin) -> bool:
        """However the two paths are written."""
        if self.sql is not None or other.sql is not None:
            return (self.sql, self.connection) == (other.sql, other.connection)
        if is_remote(str(self.file)) or is_remote(str(other.file)):
            return self.file == other.file
        return self.path.resolve() == other.path.resolve()


@dataclass
class TableStore:
    """Opens tables, each of them once: features, labels and ids of one query are of the same rows."""

    storage: Storage = field(default_factory=Storage)
    _held: dict[tuple[TableOrigin, str | None], StoredTable] = field(default_factory=dict, init=False, repr=False)

    def open(self, origin: TableOrigin, order_by: str | None) -> Path | StoredTable:
        """The file itself, or a copy of the rows, in the order of the column `order_by` of their ids."""
        if origin.is_local_file:
            return origin.path
        key = (origin, order_by)
        if key not in self._held:
            self._held[key] = _open(origin, order_by, self.storage)
        return self._held[key]

    def clear(self) -> None:
        """Lets go of the copies: what is opened next is read anew."""
        self._held.clear()


def _open(origin: TableOrigin, order_by: str | None, storage: Storage) -> StoredTable:
    if origin.sql is not None:
        return _open_query(origin, order_by, storage)
    if is_remote(str(origin.file)):
        return _open_remote(origin, order_by, storage)
    return _open_folder(str(origin), pa.fs.LocalFileSystem(), str(origin.path), order_by, storage)


def _sort_rows(says: str, table: Any, key: str, storage: Storage) -> StoredTable:
    """A data set in the order of its key; DuckDB sorts what does not fit into memory."""
    if _count_bytes(table) <= min(COPY_IN_MEMORY, storage.memory_limit_bytes):
        ordered = table.to_table(use_threads=False).sort_by(key).combine_chunks()
        return copy_rows(says, table.schema, ordered.to_batches(), key, storage)
    duckdb = _import("duckdb", f"{says}: its rows are not in the order of {key!r}; DuckDB sorts a large table")
    reader = pa.RecordBatchReader.from_batches(table.schema, StoredTable(says, table).batches(table.schema.names))
    with closing(duckdb.connect(":memory:", config=_configure_duckdb(storage))) as database:
        database.register("unsorted", reader)
        with _map_errors(says):
            ordered = database.sql(_select("unsorted", _quote(key))).to_arrow_reader(_FETCH_ROWS)
            return copy_rows(says, table.schema, (batch.cast(table.schema) for batch in ordered), key, storage)


def _count_bytes(table: Any) -> int:
    """Of a data set, without its compression."""
    groups = (group for fragment in table.get_fragments() for group in fragment.row_groups)
    return sum(int(group.total_byte_size) for group in groups)


# Folders of Parquet files, here or in an object store -------------------------------------------------------------


def _open_remote(origin: TableOrigin, order_by: str | None, storage: Storage) -> StoredTable:
    says = str(origin)
    with _map_errors(says):
        system, path = pa.fs.FileSystem.from_uri(_complete_address(says))
        return _open_folder(says, system, path, order_by, storage)


def _complete_address(address: str) -> str:
    """With what the usual variables say of a store other than Amazon's; pyarrow itself looks for the keys."""
    store = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not address.startswith("s3://") or store is None or "endpoint_override" in address:
        return address
    parts, region = urlsplit(store), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    query = urlencode({"scheme": parts.scheme, "endpoint_override": parts.netloc, "region": region or "us-east-1"})
    return f"{address}{'&' if '?' in address else '?'}{query}"


def _open_folder(says: str, system: Any, path: str, order_by: str | None, storage: Storage) -> StoredTable:
    """One Parquet file, or all those below a folder as one table, with what stands in the names of folders."""
    with _map_errors(says):
        files = _list_parquet(says, system, path)
        table = _open_dataset(says, system, path, files)
        here = isinstance(system, pa.fs.LocalFileSystem)
        if len(files) == 1 and order_by not in table.schema.names:
            return copy_rows(says, table.schema, StoredTable(says, table).batches(table.schema.names), None, storage)
        key = _require_key(says, order_by, table.schema.names, "the folder")
        rising = RisingKey(says, key)
        if any(rising.find_fall(batch) for batch in StoredTable(says, table).batches([key])):
            return _sort_rows(says, table, key, storage)
        if here:
            return StoredTable(says, table)
        return copy_rows(says, table.schema, StoredTable(says, table).batches(table.schema.names), key, storage)


def _list_parquet(says: str, system: Any, path: str) -> list[str]:
    found = system.get_file_info(path.rstrip("/"))
    if found.type == pa.fs.FileType.NotFound:
        raise BadFile(f"{says} does not exist; an address is s3://BUCKET/FOLDER/ or s3://BUCKET/FILE.parquet")
    if found.is_file:
        if not path.endswith(".parquet"):
            raise BadFile(f"{says}: only Parquet is read from an object store; copy the file here, or convert it")
        return [path]
    every = system.get_file_info(pa.fs.FileSelector(path.rstrip("/"), recursive=True))
    files = sorted(one.path for one in every if one.is_file and not one.base_name.startswith(("_", ".")))
    other = next((one for one in files if not one.endswith(".parquet")), None)
    if other is not None or not files:
        what = f"holds {Path(other).name}, which is" if other else "holds"
        raise BadFile(f"{says}: the folder {what} no Parquet file; a folder is read as one table of .parquet files")
    return files


def _open_dataset(says: str, system: Any, path: str, files: Sequence[str]) -> Any:
    """A pyarrow data set; refuses files of other columns than the first one's."""
    form = pa.dataset.ParquetFileFormat()
    schemas = [form.inspect(file, system) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        if schema.remove_metadata() != schemas[0].remove_metadata():
            raise BadTable(
                f"{says}: {Path(file).name} has other columns than {Path(files[0]).name}: "
                f"{quote_names(schema.names)}, not {quote_names(schemas[0].names)}, or other types; they must agree"
            )
    folders = _read_partitions(files, path)
    columns = schemas[0].remove_metadata()
    for name, kind in folders:
        columns = columns.append(pa.field(name, kind)) if name not in columns.names else columns
    return pa.dataset.dataset(
        list(files),
        schema=columns,
        format=form,
        filesystem=system,
        partitioning=pa.dataset.partitioning(pa.schema(folders), flavor="hive") if folders else None,
        partition_base_dir=path.rstrip("/"),
    )


def _read_partitions(files: Sequence[str], path: str) -> list[tuple[str, Any]]:
    """Columns in the names of folders, as country=CH: whole numbers where all are written so, else text."""
    values: dict[str, set[str]] = {}
    for file in files:
        for part in Path(file.removeprefix(path)).parent.parts:
            name, equals, value = part.partition("=")
            if equals:
                values.setdefault(name, set()).add(unquote(value))
    number = re.compile(r"-?(0|[1-9]\d{0,17})")
    return [
        (name, pa.int64() if all(map(number.fullmatch, found)) else pa.string()) for name, found in values.items()
    ]


# Queries ----------------------------------------------------------------------------------------------------------


def _open_query(origin: TableOrigin, order_by: str | None, storage: Storage) -> StoredTable:
    says, address = str(origin), _find_address(str(origin.connection))
    with _map_errors(says, address), closing(_connect(says, address, origin.folder, storage)) as database:
        sql = str(origin.sql).strip().rstrip(";")
        if _has_order(sql):
            schema, batches = database.run(sql)
            return copy_rows(says, schema, batches, None, storage)
        inner = f"(\n{sql}\n) AS unsorted"
        names = database.run(f"{_select(inner)} LIMIT 0")[0]
        key = _require_key(says, order_by, names.names, "the query")
        order = database.quote_order(key, names.field(key).type)
        schema, batches = database.run(_select(inner, order))
        return copy_rows(says, schema, batches, key, storage)


def _require_key(says: str, order_by: str | None, names: Sequence[str], what: str) -> str:
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise BadTable(f"{says}: two columns have the name {twice!r}; give each its own name")
    if order_by in names:
        return str(order_by)
    order = ", or end the query with ORDER BY" if what == "the query" else ""
    missing = "the party names no ids" if order_by is None else f"{what} has no column {order_by!r} of ids"
    raise BadIds(
        f"{says}: {missing}, and without an order the rows may come in a different order each time; name the column "
        f'that orders them as the party\'s ids, {{ column = "..." }} of the same table{order}'
    )


_ASIDE = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NESTED = re.compile(r"\([^()]*\)")


def _has_order(sql: str) -> bool:
    """Does the query itself, not one inside it, say ORDER BY?"""
    text = _ASIDE.sub(" ", sql)
    while (shorter := _NESTED.sub(" ", text)) != text:
        text = shorter
    return re.search(r"\border\s+by\b", text, re.IGNORECASE) is not None


def _select(table: str, order: str = "", what: str = "*") -> str:
    """The party's own query inside one of ours: whoever writes the job file may read what its user may read."""
    return f"SELECT {what} FROM {table}" + (f" ORDER BY {order}" if order else "")  # noqa: S608


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _find_address(connection: str) -> str:
    """The address itself, where an environment variable holds it."""
    if not connection.startswith("$"):
        return connection
    name = connection.removeprefix("$").strip("{}")
    if not os.environ.get(name):
        raise BadInput(f"the environment variable {name} is not set; it holds the address of the database")
    return os.environ[name]


_ALIASES = {"postgres": "postgresql", "grpc": "flightsql", "grpc+tls": "flightsql", "grpc+tcp": "flightsql"}


def _connect(says: str, address: str, folder: Path, storage: Storage) -> _Database:
    if is_remote(address):
        return _AdbcDatabase(says, address)
    path = folder / address.removeprefix("sqlite:").removeprefix("duckdb:")
    require_file(path)
    with path.open("rb") as opened:
        begins = opened.read(16)
    if begins == b"SQLite format 3\0":
        return _SqliteDatabase(path)
    if begins[8:12] == b"DUCK":
        return _DuckDatabase(says, path, storage)
    raise BadFile(
        f"{path} is not a SQLite or DuckDB database; give other databases by address, as postgresql://HOST/NAME"
    )


class _Database(ABC):
    """Answers a query with a schema and batches of rows, which last until it is closed."""

    _database: Any  # a connection

    @abstractmethod
    def run(self, sql: str) -> tuple[Any, Iterator[Any]]: ...

    def close(self) -> None:
        self._database.close()

    def quote_order(self, name: str, kind: Any) -> str:
        """Text goes by its bytes everywhere, whatever language the database sorts in."""
        return _quote(name)


class _DuckDatabase(_Database):
    def __init__(self, says: str, path: Path, storage: Storage) -> None:
        duckdb = _import("duckdb", f"{says}: a DuckDB file")
        self._database = duckdb.connect(str(path), read_only=True, config=_configure_duckdb(storage))

    def run(self, sql: str) -> tuple[Any, Iterator[Any]]:
        return _make_plain(self._database.sql(sql).to_arrow_reader(_FETCH_ROWS))


def _configure_duckdb(storage: Storage) -> dict[str, str]:
    return {"memory_limit": _SORT_MEMORY, "temp_directory": str(storage.place) if storage.spills else ""}


class _AdbcDatabase(_Database):
    """Whatever has an ADBC driver, named by its address; PostgreSQL reads one state of all its tables."""

    def __init__(self, says: str, address: str) -> None:
        scheme = address.partition("://")[0]
        driver = _ALIASES.get(scheme, scheme)
        extra = None if driver == "postgresql" else f"`pip install adbc-driver-{driver}` may have it"
        module = _import(f"adbc_driver_{driver.replace('-', '_')}.dbapi", f"{says}: a database of {scheme}", extra)
        self._is_postgresql = driver == "postgresql"
        self._database = module.connect(address)
        self._cursors: list[Any] = []
        if self._is_postgresql:
            self._begin().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def _begin(self) -> Any:
        self._cursors.append(self._database.cursor())
        return self._cursors[-1]

    def run(self, sql: str) -> tuple[Any, Iterator[Any]]:
        cursor = self._begin()
        cursor.execute(sql)
        return _make_plain(cursor.fetch_record_batch())

    def close(self) -> None:
        for cursor in self._cursors:
            with suppress(Exception):  # the connection may be gone
                cursor.close()
        super().close()

    def quote_order(self, name: str, kind: Any) -> str:
        by_bytes = self._is_postgresql and pa.types.is_string(kind)
        return f'{_quote(name)} COLLATE "C"' if by_bytes else _quote(name)


class _SqliteDatabase(_Database):
    """A column of SQLite may hold anything: its type is what its rows hold, numbers as text where some are text."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
        self._database.execute("BEGIN")  # all queries see one state

    def quote_order(self, name: str, kind: Any) -> str:
        return f"{_quote(name)} COLLATE BINARY"

    def run(self, sql: str) -> tuple[Any, Iterator[Any]]:
        inner = f"(\n{sql}\n)"
        names = [column[0] for column in self._database.execute(f"{_select(inner)} LIMIT 0").description]
        asked = ", ".join(f"max(typeof({_quote(name)}) = '{kind}')" for name in names for kind in _SQLITE_KINDS)
        found = self._database.execute(_select(inner, what=asked)).fetchone()
        held = [found[place : place + len(_SQLITE_KINDS)] for place in range(0, len(found), len(_SQLITE_KINDS))]
        schema = pa.schema([(name, _find_type(one)) for name, one in zip(names, held, strict=True)])
        return schema, self._fetch(self._database.execute(sql), schema)

    @staticmethod
    def _fetch(cursor: sqlite3.Cursor, schema: Any) -> Iterator[Any]:
        spelled = [pa.types.is_string(kind) for kind in schema.types]
        while rows := cursor.fetchmany(_FETCH_ROWS):
            columns = [
                [None if cell is None else str(cell) for cell in cells] if text else list(cells)
                for text, cells in zip(spelled, zip(*rows, strict=True), strict=True)
            ]
            arrays = [pa.array(cells, kind) for cells, kind in zip(columns, schema.types, strict=True)]
            yield pa.record_batch(arrays, schema=schema)


_SQLITE_KINDS = {"blob": pa.binary(), "text": pa.string(), "real": pa.float64(), "integer": pa.int64()}


def _find_type(held: Sequence[int | None]) -> Any:
    return next((kind for kind, some in zip(_SQLITE_KINDS.values(), held, strict=True) if some), pa.string())


def _make_plain(reader: Any) -> tuple[Any, Iterator[Any]]:
    """Types that Parquet files and preparations know: exact decimals as floats, views and UUIDs as text."""
    targets = [_find_plain_type(one.type) for one in reader.schema]
    schema = pa.schema(list(zip(reader.schema.names, targets, strict=True)))

    def convert() -> Iterator[Any]:
        for batch in reader:
            columns = [_convert(column, kind) for column, kind in zip(batch.columns, targets, strict=True)]
            yield pa.record_batch(columns, schema=schema)

    return schema, convert()


def _find_plain_type(kind: Any) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.float64() if getattr(kind, "type_name", "") == "numeric" else pa.string()
    if pa.types.is_decimal(kind):
        return pa.int64() if kind.scale == 0 and kind.precision <= 18 else pa.float64()
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if is_text else kind


def _convert(column: Any, kind: Any) -> Any:
    if column.type == kind:
        return column
    if isinstance(column, pa.ExtensionArray) and pa.types.is_string(column.type.storage_type):
        return pc.cast(column.storage, kind)
    if isinstance(column, pa.ExtensionArray):
        return pa.array([None if cell is None else str(cell) for cell in column.to_pylist()], kind)
    if pa.types.is_decimal(column.type) and pa.types.is_floating(kind):
        return pc.cast(pc.cast(column, pa.string()), kind)  # by its digits, as the text of a file is read
    return pc.cast(column, kind)


# Errors and libraries ---------------------------------------------------------------------------------------------


def _import(module: str, why: str, extra: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        raise BadInput(f"{why} needs {package}, which is not installed; {extra or _EXTRA}") from None


@contextmanager
def _map_errors(says: str, address: str = "") -> Iterator[None]:
    """What databases, object stores and files refuse, in one message, without the password."""
    try:
        yield
    except BadInput:
        raise
    except (OSError, pa.ArrowException, sqlite3.Error, RuntimeError) as error:
        raise _explain(says, address, error) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb", "adbc_driver_manager"):
            raise
        raise _explain(says, address, error) from None


def _explain(says: str, address: str, error: Exception) -> BadFile:
    text = " ".join(str(error).split())
    for secret in {address, unquote(_user_part(address).partition(":")[2]), _user_part(address).partition(":")[2]}:
        text = text.replace(secret, "***") if secret and secret not in says else text
    return BadFile(f"{says}: cannot be read: {text[:400]}; nothing was changed: once it can be reached, run it again")
