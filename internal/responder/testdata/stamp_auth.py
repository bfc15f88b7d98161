# A sender of STAMP's authenticated mode (RFC 8762 §4.2.2, §4.3.2, §4.4) that shares no code with ours: nothing but Python's
# standard library. Its layout is from memory of the RFC, whose text could not be had, and from another implementation's source
# (XilongYang/STAMP), not from ours. Usage: ADDRESS PORT KEY, the key in hexadecimal digits. It prints a line for each exchange.
# Packets that must not be answered have an authentic one behind them: its reply is the next that comes, so no silence is waited for.
import hashlib, hmac, socket, struct, sys

key = bytes.fromhex(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(60)
s.connect((sys.argv[1], int(sys.argv[2])))

def mac(packet):  # HMAC-SHA-256 over the first 96 octets, cut to 128 bits
    return hmac.new(key, packet[:96], hashlib.sha256).digest()[:16]

def test(number):  # sequence number, 12 that must be zero, timestamp, error estimate, 70 that must be zero, HMAC
    p = struct.pack("!I12x8sH70x", number, b"\xe8\0\0\1\x80\0\0\2", 0x8305)
    return p + mac(p)

def reply(sent):
    r = s.recv(2000)
    if len(r) != 112:
        return "%d bytes" % len(r)
    number, zero1, t3, error, zero2, t2, zero3, theirs, zero4, t1, theirerror, zero5, ttl, zero6, code = \
        struct.unpack("!I12s8sH6s8s8sI12s8sH6sB15s16s", r)
    return "number %d sender %d time %s error %04x ttl %d zeros %s order %s HMAC %s changed-HMAC %s" % (
        number, theirs, t1 == sent[16:24], theirerror, ttl, not any(zero1 + zero2 + zero3 + zero4 + zero5 + zero6), t2 <= t3,
        hmac.compare_digest(code, mac(r)), hmac.compare_digest(code, mac(bytes([r[0] ^ 1]) + r[1:])))

sent = test(100)
s.send(sent)
print(reply(sent))
# One bit in each field: in the number, zeros, time, error estimate, more zeros, and the HMAC's first and last octet.
for at in 3, 10, 20, 25, 95, 96, 111:
    bad = bytearray(test(500 + at))
    bad[at] ^= 1
    s.send(bad)
s.send(test(600)[:111])  # cut by an octet
sent = test(101)
s.send(sent)
print(reply(sent))
