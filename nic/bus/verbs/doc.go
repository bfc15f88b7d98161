// Package verbs uses an RDMA device beside the kernel's driver: it creates queues on the device and maps their memory
// and doorbells, and the kernel's driver keeps the function. When the process exits, even after SIGKILL, the kernel
// destroys what it created.
//
// A device is /dev/infiniband/uverbsN. Package verbs uses only its ioctl interface, because the older interface, write,
// rejects a process that has changed its user or capabilities. Older calls are made through the ioctl interface
// (abi.MethodInvokeWrite).
package verbs
