"""The event journal: segments of checked, chained records over payload bytes that it does not interpret."""

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
    Place,
    Record,
    TornTail,
    UnfinishedRotation,
)
from txdecode.runtime.journal.log import Durability, NullJournal, RecordLog, Snapshot
from txdecode.runtime.journal.reader import JournalReader, Mode, SegmentReport, iterate, read_header
from txdecode.runtime.journal.rotation import SEGMENT_BYTES
from txdecode.runtime.journal.scan import CheckReport, Damage, check, scan
from txdecode.runtime.journal.segments import list_segments, segment_path
from txdecode.runtime.journal.storage import FileStorage, OpenStorage, Storage
from txdecode.runtime.journal.writer import Journal

__all__ = [
    "FORMAT_VERSION",
    "FRAMING",
    "IGNORABLE",
    "SEGMENT_BYTES",
    "CheckReport",
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
    "Place",
    "Record",
    "RecordLog",
    "SegmentReport",
    "Snapshot",
    "Storage",
    "TornTail",
    "UnfinishedRotation",
    "check",
    "iterate",
    "list_segments",
    "read_header",
    "scan",
    "segment_path",
]
