"""Makes ``numbers.txt.gz``: 100,000 doubles with the text that JavaScript gives them.

RFC 8785 prescribes ECMAScript's number formatting, so an independent implementation of exactly that is the
reference: Node's ``JSON.stringify``. Each line holds the sixteen hexadecimal digits of a double (big endian)
and Node's text. Run ``python make_numbers.py`` with ``node`` on the path; the file is committed, so that the
test needs no Node.
"""

import gzip
import math
import random
import struct
import subprocess
from pathlib import Path

COUNT = 100_000
SCRIPT = """
const lines = require('fs').readFileSync(0, 'ascii').split('\\n').filter(x => x);
const view = new DataView(new ArrayBuffer(8));
process.stdout.write(lines.map(hex => {
  view.setBigUint64(0, BigInt('0x' + hex));
  return hex + ' ' + JSON.stringify(view.getFloat64(0));
}).join('\\n') + '\\n');
"""


def doubles() -> list[float]:
    """Boundaries first, then decimals as people write them, then random bit patterns."""
    made = [0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 1 / 3, 2.0**53 - 1]
    for exponent in range(-330, 309):
        base = float(f"1e{exponent}")
        for value in (base, math.nextafter(base, math.inf), math.nextafter(base, -math.inf)):
            made += [value, -value]
    for exponent in range(-1074, 1024):
        base = math.ldexp(1.0, exponent)
        made += [base, math.nextafter(base, math.inf), math.nextafter(base, 0.0)]
    rng = random.Random(8785)
    while len(made) < 40_000:
        made.append(round(rng.uniform(-1000, 1000), rng.randrange(0, 8)) * 10.0 ** rng.randrange(-12, 24))
    while len(made) < COUNT:
        value = struct.unpack(">d", rng.getrandbits(64).to_bytes(8, "big"))[0]
        if math.isfinite(value):
            made.append(value)
    return made


def main() -> None:
    lines = "".join(struct.pack(">d", value).hex() + "\n" for value in doubles())
    run = subprocess.run(["node", "-e", SCRIPT], input=lines, capture_output=True, text=True, check=True)
    target = Path(__file__).with_name("numbers.txt.gz")
    target.write_bytes(gzip.compress(run.stdout.encode("ascii"), 9, mtime=0))
    print(f"{run.stdout.count(chr(10))} doubles, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
