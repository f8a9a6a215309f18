"""The errors of ledgers, bookies and the metadata store.

Import them from `errors`, which holds the rest and says how errors travel.
"""

from .server_errors import MagnetarError

# ---- Ledgers and bookies ----


class LedgerError(MagnetarError):
    """The root of the errors of ledgers and bookies.

    What to do: Read the class and the message of the one that came.
    """

    server_error = 2


class LedgerFenced(LedgerError):
    """Another owner fenced the ledger, so this writer must stop.

    What to do: Nothing: the topic's new owner serves it, and clients look it up again.
    """

    server_error = 6


class NoSuchLedger(LedgerError):
    """The ledger does not exist, or the bookie does not know it.

    What to do: Nothing if the ledger was deleted. After a restore of metadata see the operations guide.
    """


class NoSuchEntry(LedgerError):
    """The ledger has no such entry. The answer is certain.

    What to do: Nothing: the entry was never acknowledged, or it was deleted.
    """


class LedgerClosed(LedgerError):
    """The ledger is closed and takes no more entries.

    What to do: Nothing: the broker writes to the topic's next ledger.
    """


class NotEnoughBookies(LedgerError):
    """Fewer bookies are usable than the ack quorum needs.

    What to do: Start the missing bookies or add some; check for full disks with `magnetar status`.
    """

    server_error = 6
    retriable = True


class EntryUnknown(LedgerError):
    """It is unknown whether the entry exists: a time-out, a lost connection, or a bookie in limbo.

    What to do: Nothing: the reader tries again. If it lasts, start the missing bookies.
    """

    retriable = True


class EntryCorrupt(LedgerError):
    """The stored bytes of an entry fail their checksum or name another entry.

    What to do: Nothing: the reader takes another copy and the auditor repairs this one. If it recurs, check the
    disk.
    """


class DigestConflict(LedgerError):
    """Different bytes are stored under the same ledger and entry id.

    What to do: Report it with the logs of the bookies: two writers wrote to one ledger.
    """


class ForeignLedger(LedgerError):
    """A bookie holds another ledger with this id, which was created before the metadata was restored from a backup. The
    bookie's answer says nothing about the requested ledger.

    What to do: Nothing: the reader asks the other bookies. See `restored` in `magnetar status`.
    """


class BookieReadOnly(LedgerError):
    """The bookie is read-only, because its disk is full or has failed.

    What to do: Free space on the bookie's disk: remove other files, or consume or delete the topics that fill it.
    """

    server_error = 6
    retriable = True


class BookieUnavailable(LedgerError):
    """The bookie cannot be reached or is overloaded.

    What to do: Check that the bookie runs (`magnetar status`) and that its disk keeps up.
    """

    server_error = 6
    retriable = True


class RecoveryFailed(LedgerError):
    """Recovery could not find the end of a ledger with the bookies that answered.

    What to do: Start the missing bookies. The broker tries again by itself.
    """

    server_error = 6
    retriable = True


class LedgerInDoubt(RecoveryFailed):
    """After a restore of older metadata, too few bookies said what they hold of a ledger that was open in the backup.

    What to do: Start the bookies that the message names, or restore a newer backup. The broker tries again by itself.
    """


# ---- Metadata ----


class MetadataError(MagnetarError):
    """The root of all errors of the metadata store.

    What to do: Read the class and the message of the one that came.
    """

    server_error = 1


class BadVersion(MetadataError):
    """Compare-and-set found another version of the record: another writer was faster.

    What to do: Read the record again and repeat the change.
    """


class KeyExists(BadVersion):
    """The key was to be created, but it already exists.

    What to do: Choose another name, or use the record that exists.
    """


class NoSuchKey(MetadataError):
    """The key does not exist.

    What to do: Check the name.
    """


class ConditionFailed(MetadataError):
    """Another record, on which the write depends, has changed. Nothing was executed.

    What to do: Nothing: the caller reads both records again and decides again.
    """

    server_error = 6
    retriable = True


class MetadataUnavailable(MetadataError):
    """The metadata store cannot be reached. Nothing was executed.

    What to do: Check the disk of the coordinator, or PostgreSQL.
    """

    server_error = 6
    retriable = True


class OutcomeUnknown(MetadataError):
    """The connection broke after the request was sent, so it may have been executed.

    What to do: Read the record before you repeat the change.
    """
