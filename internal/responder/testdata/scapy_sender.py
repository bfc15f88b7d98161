# A STAMP sender of scapy's (scapy.contrib.stamp): packets made, and replies read, by its layers. Usage: ADDRESS PORT.
# It prints what it reads of each reply, a line each.
import socket, sys
from scapy.contrib.stamp import ErrorEstimate, STAMPSessionReflectorTestUnauthenticated as Reply, \
    STAMPSessionSenderTestUnauthenticated as Test, STAMPTestTLV as TLV

# scapy names the flags from the other end than RFC 8972: its U is 01h. So they are numbers here: U is 80h, M 40h.
def tlv(kind, value):
    return TLV(flags=0x80, type=kind, len=len(value), value=value)

s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(60)
s.connect((sys.argv[1], int(sys.argv[2])))
for n in range(3):
    ask = Test(seq=100 + n, ts=3900000000.5, err_estimate=ErrorEstimate(S=1, scale=3, multiplier=5), ssid=7, tlv_objects=[
        tlv(1, b"\xaa" * 12),         # Extra Padding
        tlv(3, b"\0" * 4),            # Timestamp Information
        tlv(5, bytes([0, 0, 0, n + 1]) + b"\0" * 8),  # Direct Measurement
        tlv(200, b"what"),            # nobody's
        tlv(3, b"\0" * 3),            # of a wrong length
    ])
    s.send(bytes(ask))
    data = s.recv(2000)
    r = Reply(data)
    print("len", len(data) - len(bytes(ask)), "seq", r.seq, "sender", r.seq_sender, "ssid", r.ssid, "S", r.err_estimate.S, "Z", r.err_estimate.Z,
          "theirs", r.err_estimate_sender.S, r.err_estimate_sender.scale, r.err_estimate_sender.multiplier, "same-time", data[28:36] == bytes(ask)[4:12],
          "ttl", r.ttl_sender, "tlvs", " ".join("%d:%02x:%d" % (t.type, int(t.flags), t.len) for t in r.tlv_objects))
