// Package verbs uses an RDMA device that the kernel drives: it creates queues on it and maps their memory and doorbells, and
// the kernel's driver keeps the function. When the process ends, however it ends, the kernel destroys what it created.
//
// A device is /dev/infiniband/uverbsN. Package verbs makes the calls of its ioctl interface alone, as the older interface, write,
// refuses a process that has changed its user or capabilities. What is older than the ioctl interface is called through it
// (abi.MethodInvokeWrite).
package verbs
