# vfio.py COUNT PCI PCI: libmlx5's provider on vfio-pci, as rdma-core's own tests use it: queue pairs, completion queues and doorbell
# records in memory registered by CREATE_UMEM, commands by DevX. Those tests are for InfiniBand ports. This one has what they lack for
# Ethernet: RoCE on the vport, and an address. A message goes from the first function to the second and back COUNT times; then, by other
# queue pairs, as often between two of the first function. Each has content of its own, and arrives whole, or this ends with an error.
import os
import struct
import sys
import time

sys.path.insert(0, "/usr/lib/python3/dist-packages/tests")
import pyverbs.enums as e
import tests.mlx5_base as base
import pyverbs.providers.mlx5.mlx5_enums as dve
from pyverbs.providers.mlx5.mlx5_vfio import Mlx5VfioAttr, Mlx5VfioContext
from tests.test_mlx5_vfio import Mlx5VfioResources

# A model that has no core for a second is no fault: a completion may take a minute, and an acknowledgement 4 s (4.096 us << 20), seven times.
base.POLL_CQ_TIMEOUT = 60
base.TIMEOUT = 20

count, functions = int(sys.argv[1]), sys.argv[2:4]


class Context(Mlx5VfioContext):
    def query_gid_type(self, port, index):  # libibverbs asks sysfs, where a function of vfio-pci is not
        return e.IBV_GID_TYPE_SYSFS_ROCE_V2


class Player(Mlx5VfioResources):
    def __init__(self, function, ctx=None):
        self.function = function
        super().__init__(1, functions[function], gid_index=0, ctx=ctx)

    def create_context(self):
        if not self.ctx:
            attr = Mlx5VfioAttr(pci_name=self.pci_name)
            attr.pci_name = self.pci_name
            self.ctx = Context(attr=attr)
            self.command(struct.pack(">HHIII", 0x755, 0, 0, 0, 1 << 1).ljust(0x100, b"\0") + struct.pack(">I", 1).ljust(0x100, b"\0"))  # roce_en
            self.command(struct.pack(">HHIHH4xQIIHHIII", 0x761, 0, 0, 0, 0, 0, 0xffff, self.ip(), 0, self.mac() >> 32, self.mac() & 0xffffffff, 2, 0))

    def command(self, data):
        out = self.ctx.devx_general_cmd(data, 16)
        if out[0]:
            sys.exit(f"command {data[:2].hex()}: status {out[0]}, syndrome {out[4:8].hex()}")

    def ip(self):
        return 0x0a090001 + self.function

    def mac(self):
        return 0x020000000001 + self.function

    def query_gid(self):
        self.gid = [0, 0, 0xffff, self.ip()]

    def to(self, other):
        self.pre_run(other.psn, other.qpn, other.gid, 0, ":".join(f"{b:02x}" for b in other.mac().to_bytes(6, "big")))


def carry(a, b, i):
    size = a.msg_size
    data = bytes((i * 7 + k * 13 + (k >> 8) + a.function) & 0xff for k in range(size))
    a.mem_write(data, size)
    b.mem_write(b"\xee" * size, size)
    b.post_recv()
    a.post_send()
    sent, received = a.poll_cq(), b.poll_cq()
    if (sent.opcode, received.opcode) != (dve.MLX5_CQE_REQ, dve.MLX5_CQE_RESP_SEND_IMM):
        sys.exit(f"message {i}: completions have opcodes {sent.opcode} and {received.opcode}")
    if received.imm_inval_pkey != a.imm + a.qattr.sq.post_idx - 1:
        sys.exit(f"message {i}: immediate value {received.imm_inval_pkey:#x}")
    if b.mem_read(size) != data:
        sys.exit(f"message {i}: the content is not what was sent")


def pingpong(a, b):
    a.to(b)
    b.to(a)
    for i in range(count):
        carry(a, b, i)
        carry(b, a, i)


near, far = Player(0), Player(1)
pingpong(near, far)
print("functions:", 2 * count)
again, other = Player(0, near.ctx), Player(0, near.ctx)
pingpong(again, other)
print("loopback:", 2 * count)
os.rename("/tmp/vfio", "/tmp/carried")  # the end of this process resets the functions: their counters are looked at now
while not os.path.exists("/tmp/seen"):
    time.sleep(0.1)
for p in (near, far, again, other):
    p.close_resources()
print("closed")
