// Package abi has the structures and numbers of the kernel's RDMA interface (include/uapi/rdma) that package verbs and
// the drivers beside the kernel's use. A name is the kernel's, without its prefix and underscores: AttrCreateCQHandle
// is UVERBS_ATTR_CREATE_CQ_HANDLE. TestLayoutsVerbs of proof/lab compares all of them with the kernel's headers.
//
// Integers are in the host's byte order. A structure's trailing padding is the kernel's too: reserved fields must be
// zero.
package abi
