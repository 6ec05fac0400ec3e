"""Ed25519 as RFC 8032 describes it, in plain Python: slow, and independent of libcrypto, which the program uses."""
import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def digest(*parts):
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def add(a, b):
    """add is the sum of two points, each (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z."""
    u, v = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    c, d = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = v - u, d - c, d + c, v + u
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(n, point):
    sum = (0, 1, 1, 0)
    while n:
        if n & 1: sum = add(sum, point)
        point, n = add(point, point), n >> 1
    return sum


def same(a, b):
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def point_of(data):
    """point_of returns the point that 32 bytes encode; ValueError if they encode none."""
    y = int.from_bytes(data, "little")
    odd, y = y >> 255, y & (1 << 255) - 1
    if y >= P: raise ValueError("not a point")
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P: x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and odd): raise ValueError("not a point")
    if x & 1 != odd: x = P - x
    return x, y, 1, x * y % P


def bytes_of(point):
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = point_of((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def expand(seed):
    data = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(data[:32], "little") & (1 << 254) - 8 | 1 << 254
    return scalar, data[32:]


def public(seed):
    return bytes_of(times(expand(seed)[0], BASE))


def sign(seed, message):
    scalar, prefix = expand(seed)
    nonce = digest(prefix, message) % L
    first = bytes_of(times(nonce, BASE))
    second = (nonce + digest(first, public(seed), message) * scalar) % L
    return first + second.to_bytes(32, "little")


def verify(key, message, signature):
    try:
        point, first = point_of(key), point_of(signature[:32])
    except ValueError:
        return False
    second = int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or second >= L: return False
    return same(times(second, BASE), add(first, times(digest(signature[:32], key, message) % L, point)))
