// Package ib is what a driver of an InfiniBand port needs of InfiniBand itself, whatever the card: management datagrams (MADs) to
// the subnet manager's administration (SA) and to one's own port, the headers that queue pair 1 sends them with, and IP over
// InfiniBand (IPoIB, RFC 4391), with the Ethernet frames that stand for its packets on this host. All of it is functions over
// bytes: what sends and receives them is the driver's.
//
// Source: InfiniBand Architecture Specification, volume 1, release 1.3, as Linux has it in include/rdma (ib_mad.h, ib_smi.h, ib_sa.h) and
// drivers/infiniband/core (sa_query.c, ud_header.c); RFC 4391 and RFC 4392.
package ib
