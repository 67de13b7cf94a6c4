"""The caps of the strict reader and of the outputs, in one place.

They are checked before anything is parsed or allocated, so that a hostile document costs its size and no more.
"""

MAX_JSON_BYTES = 48 * 1024 * 1024
MAX_YAML_BYTES = 2 * 1024 * 1024  # YAML is read event by event in Python: a smaller cap keeps it in seconds
MAX_RECEIPT_BYTES = 160 * 1024 * 1024  # a receipt holds its manifest and the result of every window
MAX_DEPTH = 16  # the deepest place of a receipt is eight levels down
MAX_INTEGER = 2**53 - 1  # every JSON reader keeps integers up to here
MAX_DIGITS = 64  # significant digits of one number; a double needs 17
MAX_EXPONENT = 400  # decimal exponent of one number; a double ends at 308
MAX_RANKS = 65_536
MAX_COMPONENTS = 4_096  # of one gradient vector
MAX_MICROBATCHES = 8_000_000  # per rank; the byte cap usually comes first
MAX_RESULT_CELLS = 150_000  # windows times (gradient components + 2): a receipt grows by about 600 bytes each
MAX_COMMON_BITS = 8_192  # of the common denominator up to which a sum of quotients is kept exact
MAX_PATHS_PER_REASON = 20  # examples kept of one reason; the rest is counted
MAX_LISTED_WEIGHTS = (
    1_024  # up to so many microbatches the receipt lists every weight, beyond only the extremes
)
MAX_LISTED_WINDOWS = 20  # windows named by one verdict; the rest is counted
MAX_RATIONAL_DIGITS = 64  # a rational longer than this is given as decimal text only
MAX_REJECT_BYTES = 1024 * 1024  # a longer redacted manifest is archived as its reasons only
MAX_REJECTS = 10_000  # records of one archive
