"""Removes everything that is not loaded from a linked program, except the names of its functions.

zig's linker removes either everything or nothing, and its `objcopy` cannot do this either.
Source: System V ABI, chapter 4 (object files), for 64-bit little-endian files.
"""

import struct

HEADER = struct.Struct("<HHIQQQIHHHHHH")  # after the 16 bytes of identification
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
ALLOCATED, EXECUTABLE = 2, 4
NO_BITS, SYMBOLS, STRINGS = 8, 2, 3
NO_TYPE, FUNCTION = 0, 2


def keep_function_names(path):
    """Rewrites the program at `path`: its loaded part unchanged, followed by a symbol table of its functions."""
    data = path.read_bytes()
    header = list(HEADER.unpack_from(data, 16))
    at, size, count, names_index = header[5], header[10], header[11], header[12]
    sections = [list(SECTION.unpack_from(data, at + i * size)) for i in range(count)]
    kept = [s for i, s in enumerate(sections) if i == 0 or s[2] & ALLOCATED]
    if sections[: len(kept)] != kept:
        raise ValueError(f"{path.name}: a section that is not loaded precedes one that is")

    table = next(s for s in sections if s[1] == SYMBOLS)
    texts = sections[table[6]]
    functions = []
    for offset in range(table[4], table[4] + table[5], SYMBOL.size):
        symbol = SYMBOL.unpack_from(data, offset)
        name = text(data, texts[4] + symbol[0])
        inside = 0 < symbol[3] < len(kept) and kept[symbol[3]][2] & EXECUTABLE
        if inside and symbol[1] & 15 in (NO_TYPE, FUNCTION) and name and not name.startswith(b"."):
            functions.append((symbol[1] >> 4 > 0, symbol[4], name, symbol))
    functions.sort(key=lambda function: function[:3])

    symbols, strings = bytearray(SYMBOL.size), bytearray(1)
    for _, _, name, (_, *rest) in functions:
        symbols += SYMBOL.pack(len(strings), *rest)
        strings += name + b"\0"
    local = 1 + sum(not is_global for is_global, *_ in functions)

    end = max(s[4] + (0 if s[1] == NO_BITS else s[5]) for s in kept)
    out = bytearray(data[:end])
    labels = bytearray(1)
    for section in kept[1:]:
        name = text(data, sections[names_index][4] + section[0])
        section[0] = len(labels)
        labels += name + b"\0"
    added = [(b".symtab", SYMBOLS, symbols, len(kept) + 1, local, 8, SYMBOL.size), (b".strtab", STRINGS, strings, 0, 0, 1, 0),
             (b".shstrtab", STRINGS, labels, 0, 0, 1, 0)]
    places = [labels.extend(name + b"\0") or len(labels) - len(name) - 1 for name, *_ in added]
    for place, (_, kind, content, link, info, alignment, entry) in zip(places, added):
        out += bytes(-len(out) % alignment)
        kept.append([place, kind, 0, 0, len(out), len(content), link, info, alignment, entry])
        out += content
    out += bytes(-len(out) % 8)
    header[5], header[11], header[12] = len(out), len(kept), len(kept) - 1
    HEADER.pack_into(out, 16, *header)
    for section in kept:
        out += SECTION.pack(*section)
    path.write_bytes(out)


def text(data, start):
    """The bytes from `start` to the next zero."""
    return data[start : data.index(0, start)]
