// Package lab boots a stock Debian Linux in QEMU, on functions that our device models serve over vfio-user, and runs
// our own drivers inside it. It is where models are validated: rung F2 is the unmodified Linux driver on the model,
// rung F3 our driver in the guest, behind the guest's IOMMU, against the Linux driver on a second model, and rung F4
// third-party drivers, such as iPXE's, on the model.
//
// QEMU needs no KVM here: it uses emulation, and boots in about five seconds. The first run downloads QEMU, kernel and
// tools, about 200 MB, from the Debian mirror configured in the host's apt into a cache folder, and installs nothing.
package lab
