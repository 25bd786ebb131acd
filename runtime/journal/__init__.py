"""The event journal: one file of checked, chained records over payload bytes that it does not interpret."""

from txdecode.runtime.journal.errors import (
    JournalCorrupt,
    JournalError,
    JournalExists,
    JournalFailed,
    JournalLocked,
    JournalUnavailable,
    JournalVersionError,
    NotAJournal,
)
from txdecode.runtime.journal.format import (
    FORMAT_VERSION,
    FRAMING,
    IGNORABLE,
    Entry,
    Header,
    Record,
    TornTail,
)
from txdecode.runtime.journal.reader import Damage, JournalReader, Mode, iterate, read_header, scan
from txdecode.runtime.journal.storage import FileStorage, OpenStorage, Storage
from txdecode.runtime.journal.writer import Durability, Journal, NullJournal, RecordLog

__all__ = [
    "FORMAT_VERSION",
    "FRAMING",
    "IGNORABLE",
    "Damage",
    "Durability",
    "Entry",
    "FileStorage",
    "Header",
    "Journal",
    "JournalCorrupt",
    "JournalError",
    "JournalExists",
    "JournalFailed",
    "JournalLocked",
    "JournalReader",
    "JournalUnavailable",
    "JournalVersionError",
    "Mode",
    "NotAJournal",
    "NullJournal",
    "OpenStorage",
    "Record",
    "RecordLog",
    "Storage",
    "TornTail",
    "iterate",
    "read_header",
    "scan",
]
