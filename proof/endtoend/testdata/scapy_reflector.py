# A stateful STAMP reflector of scapy's (scapy.contrib.stamp): packets read, and replies made, by its layers. Usage: ADDRESS PORT.
# It knows no TLVs: they go back as they came, so with the flag U that their sender set. It prints "ready", and what it reads of the
# first probe.
import socket, sys, time
from scapy.contrib.stamp import ErrorEstimate, STAMPSessionReflectorTestUnauthenticated as Reply, \
    STAMPSessionSenderTestUnauthenticated as Test

s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
count = 0
while True:
    data, peer = s.recvfrom(2000)
    now = time.time() + 2208988800
    q = Test(data)
    if count == 0:
        print("ssid", q.ssid, "Z", q.err_estimate.Z, "tlvs", " ".join("%d:%02x:%d" % (t.type, int(t.flags), t.len) for t in q.tlv_objects), flush=True)
    r = Reply(seq=count, ts=now, err_estimate=ErrorEstimate(S=1, scale=20, multiplier=1), ssid=q.ssid, ts_rx=now, seq_sender=q.seq,
              err_estimate_sender=q.err_estimate, ttl_sender=64, tlv_objects=q.tlv_objects)
    out = bytearray(bytes(r))
    out[28:36] = data[4:12]  # scapy's times are floating point, which has not the bits for it
    s.sendto(out, peer)
    count += 1
