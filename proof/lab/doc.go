// Package lab boots a stock Debian Linux in QEMU, on functions that our device models serve over vfio-user, and runs our own
// drivers inside it. It is where a model is believed: rung F2 is the unmodified Linux driver on the model, rung F3 our
// driver in the guest, behind the guest's IOMMU, against the Linux driver on a second model, and rung F4 are drivers that others
// wrote, iPXE's, on the model.
//
// QEMU needs no KVM here: it translates, and boots in about five seconds. The first run brings QEMU, kernel and tools from
// the Debian mirror that the host's apt knows, about 200 MB, into a cache folder, and installs nothing.
package lab
