// Package ib implements the parts of InfiniBand that a driver needs whatever the card: management datagrams (MADs) to
// subnet administration (SA) and to the local port, the headers that queue pair 1 sends them with, and IP over
// InfiniBand (IPoIB, RFC 4391) with the Ethernet frames that represent its packets on this host. It only encodes and
// decodes bytes; the driver sends and receives them.
//
// Source: InfiniBand Architecture Specification, volume 1, release 1.3, as implemented by Linux in include/rdma
// (ib_mad.h, ib_smi.h, ib_sa.h) and drivers/infiniband/core (sa_query.c, ud_header.c); RFC 4391 and RFC 4392.
package ib
