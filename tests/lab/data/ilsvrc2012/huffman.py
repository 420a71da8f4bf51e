"""Decode the compressed data of a baseline JPEG bit by bit, to count the bits of its blocks. Slow and simple."""

import re
import struct


def spare_bits(content):
    """Return the number of bits beyond those that the blocks take (negative if some lack); None for an invalid code.

    For JPEGs of one scan without restarts. Coefficients beyond the last, or of any size, are read over, as by libjpeg.
    """
    at, tables, sampling = 2, {}, {}
    while True:
        marker, (length,) = content[at + 1], struct.unpack_from(">H", content, at + 2)
        body, at = content[at + 4 : at + 2 + length], at + 2 + length
        if marker == 0xC0:
            height, width = struct.unpack_from(">HH", body, 1)
            sampling = {body[i]: (body[i + 1] >> 4, body[i + 1] & 15) for i in range(6, len(body), 3)}
        while marker == 0xC4 and body:
            counts, symbols = body[1:17], iter(body[17:])
            code, codes = 0, {}
            for bits, count in enumerate(counts, 1):
                codes |= {f"{code + i:0{bits}b}": next(symbols) for i in range(count)}
                code = (code + count) << 1
            tables[body[0]] = codes
            body = body[17 + sum(counts) :]
        if marker == 0xDA:
            used = [(body[i], body[i + 1]) for i in range(1, 1 + 2 * body[0], 2)]
            break
    data = content[at : re.compile(rb"\xff[^\x00]").search(content, at).start()].replace(b"\xff\x00", b"\xff")
    bits = "".join(f"{byte:08b}" for byte in data)
    most = [max(side) for side in zip(*sampling.values(), strict=True)] if len(used) > 1 else [1, 1]
    units = -(-width // (8 * most[0])) * -(-height // (8 * most[1]))
    blocks = [t for name, t in used for _ in range(sampling[name][0] * sampling[name][1] if len(used) > 1 else 1)]
    at = 0

    def read(table):
        nonlocal at
        for length in range(1, 17):
            if (symbol := table.get(bits[at : at + length])) is not None:
                at += length + (symbol & 15)
                return symbol
        raise LookupError

    for unit in range(units):
        try:
            for tables_of in blocks:
                read(tables[tables_of >> 4])
                k = 1
                while k < 64:
                    symbol = read(tables[16 | tables_of & 15])
                    if symbol & 15 == 0 and symbol != 0xF0:
                        break
                    k += (symbol >> 4) + 1
        except LookupError:
            return len(bits) - at - 8 * (units - unit) if at + 16 > len(bits) else None
    return len(bits) - at
