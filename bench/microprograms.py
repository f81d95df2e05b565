"""Generates small LoongArch programs: instruction words from the instruction table, a loop around them, and an ELF file.

Operands are given by field, and only their size is checked. Python's standard library only.
Source: encodings from crates/isa/loongarch/instructions.tsv; ELF-64 Object File Format; system call numbers from Linux.
"""

import dataclasses
import re
import struct

from children import ROOT

TABLE = ROOT / "crates/isa/loongarch/instructions.tsv"
# Address of the code; zeroed data follows it.
CODE = 0x1_0000
DATA = 0x100_0000
ZERO, COUNT, BASE, OTHER = 0, 12, 13, 14  # registers: zero, the loop's, an address, another one
EXIT_GROUP = 94


@dataclasses.dataclass(frozen=True)
class Row:
    """An instruction of the table."""

    match: int
    operands: tuple
    reads: tuple
    writes: tuple
    kind: str


def rows():
    """All instructions by mnemonic."""
    found = {}
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            match, name, operands, reads, writes, _, _, kind = line.split("\t")
            split = lambda text: () if text == "-" else tuple(text.split(","))
            found[name] = Row(int(match, 16), split(operands), split(reads), split(writes), kind)
    return found


ROWS = rows()


def word(name, *values):
    """Encodes an instruction: operands in assembly order, immediates as encoded."""
    row = ROWS[name]
    made = row.match
    for operand, value in zip(row.operands, values, strict=True):
        parts = re.findall(r"(\d+)(?::(\d+))?", operand.split("<<")[0].split("+")[0])
        for low, width in reversed(parts):
            width = int(width) if width else 5
            made |= (value & ((1 << width) - 1)) << int(low)
            value >>= width
    return made


def constant(register, value):
    """Loads an unsigned 32-bit number into a register."""
    return [word("lu12i.w", register, value >> 12), word("ori", register, register, value & 0xFFF), word("lu32i.d", register, 0)]


def branch(name, distance, *registers):
    """A branch over this many words, with registers as the instruction has them."""
    return word(name, *registers, distance)


def loop(body, times, before=(), between=()):
    """A program that runs `before`, then `body` and `between` this many times, and exits."""
    again = [*body, *between, word("addi.d", COUNT, COUNT, -1)]
    again.append(branch("bnez", -len(again), COUNT))
    end = [word("ori", 4, ZERO, 0), word("ori", 11, ZERO, EXIT_GROUP), word("syscall", 0)]
    return [*before, *constant(COUNT, times), *again, *end]


def elf(words, data_bytes):
    """An executable of these words, with this many zero bytes at DATA."""
    code = struct.pack(f"<{len(words)}I", *words)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 258, 1, CODE + 176, 64, 0, 0x43, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, CODE, CODE, 176 + len(code), 176 + len(code), 1 << 16)
    zero = struct.pack("<IIQQQQQQ", 1, 6, 0, DATA, DATA, 0, data_bytes, 1 << 16)
    return head + load + zero + code


# --- Single instructions ----------------------------------------------------------------------------------------------

# Classes of instructions for chains and independent sequences; others access memory, branch, or drain the pipeline.
COMPUTES = re.compile(r"alu|shift|bit|mul|div|crc|move|fp-.*|vector-.*|lbt|lbt-mul")


def chain(name):
    """An instruction that depends on itself: its destination is its first source of the same kind. None if it has none."""
    row = ROWS[name]
    if not COMPUTES.fullmatch(row.kind) or not row.writes or row.writes[0] not in row.operands:
        return None
    written = row.writes[0]
    same = [operand for operand in row.operands if operand[0] == written[0] and operand in row.reads]
    if not same or any(operand[0] not in "rfvxsu" for operand in row.operands):
        return None
    number = lambda operand: {written: 8, same[0]: 8}.get(operand, 9 if operand[0] in "rfvx" else 1)
    return [word(name, *map(number, row.operands))]


def independent(name):
    """Eight independent copies of an instruction with shared sources and different destinations, as in the measured table. None if it
    has no destination.
    """
    row = ROWS[name]
    if not COMPUTES.fullmatch(row.kind) or not row.writes or row.writes[0] not in row.operands:
        return None
    written = row.writes[0]
    if written[0] not in "rfvx" or any(operand[0] not in "rfvxsu" for operand in row.operands):
        return None
    # Registers that are otherwise unused.
    places = [4, 5, 6, 7, 8, 10, 15, 16] if written[0] == "r" else range(12, 20)
    number = lambda operand, place: place if operand == written else 9 if operand[0] in "rfvx" else 1
    return [word(name, *(number(operand, place) for operand in row.operands)) for place in places]
