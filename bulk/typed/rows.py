"""Record batches of payloads into record batches of typed columns.

Rows of one version are decoded together, wherever they lie in the batch. A row whose payload is null has null in all
typed columns. A payload that does not fit ends the read with an error that names its entry; nothing is left out.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ...actors.schemas.definition import SchemaDefinition
from ...protocol.errors import IncompatibleSchema, SchemaSerializationError
from ...protocol.message_id import Position
from ...protocol.schema_types import SchemaType
from .avro_resolution import Unresolvable
from .choice import RowShape
from .columns import MESSAGE_KEY, METADATA_COLUMNS, VALUE, EntryRows
from .decoders import decoder_of, part_decoders
from .key_value_columns import KEY
from .payloads import OTHERWISE, PayloadDecoder, PayloadMisfit, Payloads, first_misfit, payloads_of, spread


class TypedRows:
    """Decodes the batches of one topic. Not thread-safe."""

    def __init__(self, topic: str, shape: RowShape) -> None:
        assert shape.typed is not None
        self._topic = topic
        self._shape = shape
        self._typed = shape.typed
        self._names = shape.typed_names
        self._schema = shape.schema
        self._is_pair = self._typed.reader.type is SchemaType.KEY_VALUE
        self._decoders: dict[bytes, list[PayloadDecoder]] = {}

    @property
    def needed(self) -> list[str]:
        """The columns that `decode` takes: the metadata that is asked for, and what the typed columns come from."""
        found = [name for name in self._shape.columns if name in METADATA_COLUMNS]
        if self._names:
            found.append(VALUE)
        if self._is_pair and KEY in self._names and MESSAGE_KEY not in found:
            found.append(MESSAGE_KEY)
        return found

    def decode(self, batch: pa.RecordBatch, entries: EntryRows) -> pa.RecordBatch:
        """The batch with the columns of the shape.

        Raises SchemaSerializationError for a payload that does not fit its schema, or whose version is not known.
        Raises IncompatibleSchema for a version that cannot be read as the reader's.
        """
        typed = self._typed_columns(batch, entries) if self._names else {}
        columns = [typed[name] if name in typed else batch.column(name) for name in self._shape.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _typed_columns(self, batch: pa.RecordBatch, entries: EntryRows) -> dict[str, pa.Array]:
        versions = dict.fromkeys(entries.schema_versions) or {b"": None}
        parts: list[tuple[np.ndarray, list[pa.Array]]] = []
        row_versions = np.empty(0, np.int64)
        if len(versions) > 1:
            numbers = {version: number for number, version in enumerate(versions)}
            row_versions = np.repeat([numbers[one] for one in entries.schema_versions], entries.counts)
        for number, version in enumerate(versions):
            rows = np.flatnonzero(row_versions == number) if len(versions) > 1 else np.arange(batch.num_rows)
            parts.append((rows, self._of_version(batch, entries, version, rows)))
        if len(parts) == 1:
            return dict(zip(self._names, parts[0][1], strict=True))
        order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable").astype(np.int32)
        columns = [pa.concat_arrays(arrays) for arrays in zip(*(arrays for _, arrays in parts), strict=True)]
        return {name: column.take(pa.array(order)) for name, column in zip(self._names, columns, strict=True)}

    def _of_version(
        self, batch: pa.RecordBatch, entries: EntryRows, version: bytes, rows: np.ndarray
    ) -> list[pa.Array]:
        """The typed columns of rows that have one version."""
        whole = len(rows) == batch.num_rows

        def payloads(name: str) -> tuple[Payloads, np.ndarray | None]:
            column = batch.column(name)
            return payloads_of(column if whole else column.take(pa.array(rows.astype(np.int32))))

        found: dict[str, pa.Array] = {}
        for decoder in self._decoders_of(version, entries):
            some, places = payloads(decoder.column)
            try:
                columns = decoder.decode(some)
            except PayloadMisfit:
                raise self._misfit(decoder, some, rows if places is None else rows[places], entries) from None
            for field, column in zip(decoder.fields, columns, strict=True):
                found[field.name] = column if places is None else spread(column, places, len(rows))
        return [found[name] for name in self._names]

    # ---- Versions ----

    def _writer(self, version: bytes) -> SchemaDefinition | None:
        """The schema of a version; None if it is not known. Without one, the message is taken for the reader's."""
        return self._typed.versions.get(int.from_bytes(version, "big")) if version else self._typed.reader

    def _decoders_of(self, version: bytes, entries: EntryRows) -> list[PayloadDecoder]:
        made = self._decoders.get(version)
        if made is None:
            made = self._decoders[version] = self._make_decoders(version, entries)
        return made

    def _make_decoders(self, version: bytes, entries: EntryRows) -> list[PayloadDecoder]:
        number = int.from_bytes(version, "big")
        writer = self._writer(version)
        if writer is None:
            place = list(entries.schema_versions).index(version)
            raise self._error(
                SchemaSerializationError,
                entries.positions[place],
                f"was written with version {number} of the schema, which the topic no longer has",
            )
        reader = self._typed.reader
        try:
            if self._is_pair:
                parts = part_decoders(reader, writer)
                return [parts[name] for name in self._names]
            return [decoder_of(reader, writer, self._names)]
        except Unresolvable as error:
            raise IncompatibleSchema(
                f"messages of {self._topic} with version {number} of the schema cannot be read as the schema of the "
                f"columns: {error}: read another version's columns, or {OTHERWISE}"
            ) from None

    # ---- Errors ----

    def _misfit(self, decoder: PayloadDecoder, some: Payloads, rows: np.ndarray, entries: EntryRows) -> Exception:
        """The error for the first of some payloads that does not fit. `rows` are theirs."""
        place, why = first_misfit(decoder, some)
        entry = int(np.searchsorted(np.cumsum(entries.counts), int(rows[place]), side="right"))
        return self._error(
            SchemaSerializationError,
            entries.positions[entry],
            f"has a message that does not fit the topic's schema: {why}",
        )

    def _error(self, kind: Callable[..., Exception], position: Position, what: str) -> Exception:
        ledger_id, entry_id = position
        text = f"entry {ledger_id}:{entry_id} of {self._topic} {what}: {OTHERWISE}"
        return kind(text, ledger_id=ledger_id, entry_id=entry_id, topic=self._topic)
