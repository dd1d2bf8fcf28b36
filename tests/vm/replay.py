"""Makes of a disk what a power cut leaves of it: replay.py LOG IMAGE SEED.

LOG is what QEMU's `blklogwrites` driver has written: each write and each flush, in their order. IMAGE is the disk as it
was before the first of them. All writes before the last flush are carried out; of those behind it, which a
disk may have kept in its memory, a part that is drawn by lot.
"""

import random
import struct
import sys

MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD = 1, 2, 4


def entries(log):
    """The entries that the log counts: flags, where on the disk, and the bytes."""
    magic, version, count, sector_bytes = struct.unpack("<QQQI", log.read(28))
    if (magic, version) != (MAGIC, 1):
        sys.exit(f"it is no log of writes: magic {magic:#x}, version {version}")
    at = 1
    for _ in range(count):
        log.seek(at * sector_bytes)
        sector, sectors, flags, _ = struct.unpack("<QQQQ", log.read(32))
        kept = 0 if flags & (DISCARD | FLUSH) else sectors
        body = log.read_at((at + 1) * sector_bytes, kept * sector_bytes)
        if len(body) != kept * sector_bytes:
            sys.exit("the log ends within an entry that it counts")
        at += 1 + kept
        yield flags, sector * sector_bytes, body


class Log:
    """A file that is read at places."""

    def __init__(self, path):
        self.file = open(path, "rb")
        self.seek, self.read = self.file.seek, self.file.read

    def read_at(self, offset, length):
        self.seek(offset)
        return self.read(length)


def main(log, image, seed):
    lots = random.Random(seed)
    done = list(entries(Log(log)))
    last_flush = max((at for at, (flags, _, _) in enumerate(done) if flags & FLUSH), default=-1)
    unsynced = lost = 0
    with open(image, "r+b") as disk:
        for at, (flags, offset, body) in enumerate(done):
            if not body:
                continue
            if at > last_flush and not flags & FUA:
                unsynced += 1
                if lots.random() < 0.5:
                    lost += 1
                    continue
            disk.seek(offset)
            disk.write(body)
    flushes = sum(1 for flags, _, _ in done if flags & FLUSH)
    print(f"{len(done)} entries, {flushes} flushes; of {unsynced} writes behind the last one {lost} are lost")


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
