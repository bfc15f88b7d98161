// Package rdma implements InfiniBand's transport for card models, on InfiniBand links and over Ethernet (RoCE):
// packets, and both sides of the reliable connected service (RC). A model defines what work requests, memory and
// completions look like. The protocol on the wire is the same for all cards.
//
// Source: InfiniBand Architecture Specification, volume 1, release 1.3, chapters 5 and 9; annexes A16 (RoCE) and A17
// (RoCE v2).
//
// Connections support SEND, RDMA WRITE, both with immediate data, and RDMA READ, with acknowledgements and their timer,
// sequence errors, receiver not ready, and remote errors. There are no atomic operations, no end-to-end credits, no
// path migration, and only one READ at a time.
package rdma
