// Package rdma is InfiniBand's transport as every card has it, on InfiniBand links or over Ethernet (RoCE): its packets, and the
// reliable connected service (RC) on both sides. A model of a card says how work requests, memory and completions look; what goes
// over the wire, and when, is the same for all of them, or they could not talk to each other.
//
// Source: InfiniBand Architecture Specification, volume 1, release 1.3, chapters 5 and 9; annexes A16 (RoCE) and A17 (RoCE v2).
//
// Connections have SEND, RDMA WRITE, both with immediate data, and RDMA READ: acknowledgements and their timer, sequence errors,
// a receiver that is not ready, remote errors. There are no atomic operations, no end-to-end credits, no path migration, and one
// READ at a time.
package rdma
