"""A second reader of logs, written from the texts in specs/ alone: it shares no code with the project."""

from collections import Counter
from hashlib import blake2b
from struct import pack, unpack_from
from types import SimpleNamespace as Request
from zlib import crc32

from msgspec.msgpack import decode

MAGIC, KEYS = b"\x89TXLOG\r\n", {"required", "optional", "fingerprint", "configuration", "salt"}
DIGESTS = {1: 7, 2: 4, 3: 8, 4: 17, 8: 4, 9: 5, 10: 3}  # event: which of its fields
NEUTRAL = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
}
NEUTRAL |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": [], "logprobs": None}


class Refused(Exception):
    pass


def need(condition, reason):
    if not condition:
        raise Refused(reason)


def sealed(data, start, end):
    return end + 4 <= len(data) and crc32(data[start:end]) == unpack_from("<I", data, end)[0]


def payload_size(data, o):
    """Of the intact record at o; None where none is."""
    if data[o] != 0xC1 or not sealed(data, o, o + 16):
        return None
    n = unpack_from("<I", data, o + 4)[0]
    return n if n <= 2**28 and sealed(data, o + 20, o + 28 + n) else None


def no_record_after(data, o):
    return not any(payload_size(data, p) is not None for p in range(o + 1, len(data)))


def header(data):
    need(data[:8] == MAGIC and sealed(data, 0, 16), "no journal, or its header is damaged")
    version, _, size = unpack_from("<HHI", data, 8)
    need(version == 1 and size <= 2**20 and sealed(data, 20, 20 + size), "a later version, or damaged")
    head = decode(data[20 : 20 + size])
    need(
        set(head) >= KEYS and set(head["required"]) <= {"segments"}, "a key is missing, or a feature unknown"
    )
    return head, 24 + size


def journal(path):
    """Records as (type, version, flags, payload), the chain, the bytes of a torn tail, the configuration."""
    files = {int(f.name[-5:]): f for f in path.parent.glob(path.name + "." + "[0-9]" * 5)}
    files |= {0: path} if path.exists() else {}
    records, chain, torn, sequence, run = [], b"", 0, 0, None
    for number in sorted(files):
        data, here, before = files[number].read_bytes(), [], chain
        first, last = number == min(files), number == max(files)
        try:
            head, o = header(data)
        except Refused:
            if last and not first and data[:8] == MAGIC[: len(data)] and no_record_after(data, 0):
                break  # the creation of this segment was interrupted
            raise
        joint = (head.get("segment", 0), head.get("first_sequence", 0), head.get("chain_before", b""))
        need(
            first or joint == (max(n for n in files if n < number) + 1, sequence, chain),
            "segments do not join",
        )
        need(joint[0] == number and run in (None, head["salt"]), "a segment of another place or log")
        run, sequence, chain = head["salt"], joint[1], blake2b(data[:o], digest_size=8).digest()
        while o < len(data) and (n := payload_size(data, o)) is not None:
            chain = blake2b(chain + data[o : o + 20 + n], digest_size=8).digest()
            good = data[o + 8 : o + 16] + data[o + 20 + n : o + 28 + n] == pack("<Q", sequence) + chain
            need(good, f"damage at {o}: sequence or chain")
            here.append((*data[o + 1 : o + 4], data[o + 20 : o + 20 + n]))
            o, sequence = o + 32 + n, sequence + 1
        need(o == len(data) or (last and no_record_after(data, o)), f"damage at {o}")
        if len(here) < head.get("opening", 0):
            need(last and not first, "damage in the opening records")
            return records, before, 0, head["configuration"]
        records, torn, configuration = records + here, len(data) - o, head["configuration"]
    return records, chain, torn, configuration


def mix(tag, a, b, value):
    x = (
        tag * 0x9E3779B97F4A7C15
        + a * 0xBF58476D1CE4E5B9
        + b * 0x94D049BB133111EB
        + value * 0xFF51AFD7ED558CCD
    )
    x = (x % 2**64 ^ x % 2**64 >> 29) * 0xC4CEB9FE1A85EC53 % 2**64
    return x ^ x >> 32


def cells(r, s, kinds):
    """What request r holds, as (tag, a, b, value); the ledger is in the tag."""
    yield from ((0x10, r, i, token) for i, token in enumerate(s.prompt))
    yield from ((0x11, r, i, token) for i, token in enumerate(s.ids))
    yield from ((0x12, r, token, count) for token, count in Counter(s.ids).items())
    yield from ((0x13, r, s.rounds, s.consumed), (0x14, r, 0, s.epoch), (0x15, r, 0, s.budget))
    yield from ((0x50, r, role, position) for role, position in enumerate(s.positions))
    yield from ((tag, r, 0, value) for tag, value in ((0x51, s.seed), (0x52, s.law)) if value)
    if s.resident:
        yield 0x16, r, 0, 1
        yield from (
            (0x20, r, g * 2**32 + i, page) for g, t in enumerate(s.tables) for i, page in enumerate(t)
        )
        yield from ((0x30, r, g, column) for g, column in enumerate(s.columns))
        yield from ((0x40, r, g, ring) for g, ring in enumerate(s.rings))
        places = {0x22: {"pages"}, 0x31: {"column"}, 0x41: {"ring", "tokens"}}
        yield from ((tag, r, 0, s.consumed) for tag, these in places.items() if these & kinds)


def digests(known, kinds):
    sums = [0] * 5
    pages = Counter((g, page) for s in known.values() for g, t in enumerate(s.tables) for page in t)
    references = ((0x21, g, page, count) for (g, page), count in pages.items())
    for cell in (*references, *(cell for r, s in known.items() for cell in cells(r, s, kinds))):
        sums[cell[0] // 16 - 1] += mix(*cell)
    return [total % 2**64 for total in sums]


def restore(ledgers):
    known = {}
    for r, (prompt, budget, epoch, consumed, rounds, resident, ids) in ledgers["tokens"].items():
        tables, columns, rings = (ledgers[name].get(r, [[]])[0] for name in ("pages", "recurrent", "history"))
        law, seed, positions = ledgers["rng"][r]
        held = {
            "tables": tables,
            "columns": columns,
            "rings": rings,
            "resident": resident,
            "positions": positions,
        }
        s = Request(
            prompt=prompt, ids=ids, budget=budget, epoch=epoch, consumed=consumed, rounds=rounds, **held
        )
        s.law, s.seed, known[int(r)] = law, seed, s
    return known


def advance(s, count, pages, columns):
    s.consumed, s.columns = s.consumed + count, columns
    s.tables = [table + more for table, more in zip(s.tables, pages, strict=True)]


def fold(kind, e, known, requests, page_groups):
    """Change what is known by one event, and note in ``requests`` what each emitted and how it ended."""
    if kind == 10:
        known.update(restore(e[0]))
        requests.update({r: {"ids": s.ids, "finish": None} for r, s in known.items()})
        return
    s = known.get(e[0])
    if kind == 1:
        places = {
            "tables": [],
            "columns": [],
            "rings": [],
            "resident": False,
            "positions": [len(e[1])] * e[4],
        }
        s = Request(
            prompt=e[1], ids=[], budget=e[2], epoch=0, consumed=0, rounds=0, law=e[8], seed=e[9], **places
        )
        known[e[0]], requests[e[0]] = s, {"ids": s.ids, "finish": None}
    elif kind == 2:
        s.resident, s.columns, s.rings, s.tables = True, e[2], e[3], [[] for _ in range(page_groups)]
    elif kind == 3:
        advance(s, e[4], e[5], e[6])
    elif kind == 4:
        clip, emitted, _, adopted, _, columns, positions = e[9:16]
        s.ids += emitted
        s.rounds, s.positions = s.rounds + 1, [p + len(emitted) for p in s.positions]
        need(s.positions == positions, "positions do not follow")
        if clip:
            requests[e[0]]["finish"] = (None, "stop", "length")[clip]
            del known[e[0]]
        else:
            advance(s, len(emitted), adopted, columns)
    elif kind == 8:
        s.epoch, s.consumed, s.resident, s.tables, s.columns, s.rings = e[1], 0, False, [], [], []
    elif kind == 9:
        requests[e[0]]["finish"] = e[2]
        del known[e[0]]


def read(path):
    records, chain, torn, configuration = journal(path)
    kinds = [group[1] for group in configuration["groups"]]
    known, requests, events, sums = {}, {}, [], [0] * 5
    for kind, version, flags, payload in records:
        need(version <= {1: 2, 4: 4}.get(kind, 1) or flags & 1, "a later schema version")
        e = decode(payload)
        if version == 1 and kind == 1:
            e[5]["sampling"], e[8:] = NEUTRAL, [0, 0]
        elif version == 1 and kind == 4:
            e[18:] = [[], 0, []]
        elif version == 2 and kind == 4:
            e[19:] = [0, []]
        elif version == 3 and kind == 4:
            e[20:] = [[]]
        need(kind != 4 or 0 <= e[19] <= len(e[6]), "more copies than drafts")
        need(kind in DIGESTS or flags & 1, "an event of unknown type")
        if kind in DIGESTS:
            fold(kind, e, known, requests, kinds.count("pages"))
            before, sums = sums, digests(known, set(kinds))
            need(pack("<5Q", *sums) == e[DIGESTS[kind]], f"digests after record {len(events)}")
            need(kind != 10 or not events or before == sums, "a snapshot of something else")
        events.append((kind, e))
    names = ("tokens", "pages", "recurrent", "history", "rng")
    final = {name: f"{total:016x}" for name, total in zip(names, sums, strict=True)}
    return {"requests": requests, "digests": final, "chain": chain.hex(), "torn": torn, "events": events}
